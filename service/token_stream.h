// The server streams: tokens from the engine to one client, and a session's tokens read back.
//
// A token stream is a TokenSink for the engine and a write reactor for gRPC:
//
//   open --[OnEnd, once nothing is being written]--> finished --[OnDone]--> released
//
// (1) At most one write is under way; what comes meanwhile is merged into the next message. What
//     the engine has said is written by the StreamWriter's thread, or by gRPC's after a write.
// (2) Over its bound, the stream tells the engine to pause; once all that waited is on its way, to
//     go on. So at most twice the bound is held for a reader that does not read.
// (3) Cancellation, a passed deadline and a dead peer all end it in the engine, within one step;
//     the stream finishes when the engine has let go, never before.
// (4) The engine and gRPC each keep it alive until their last call: it is shared, and holds a
//     reference to itself from Start to OnDone.
// (5) No call into gRPC or the engine is made under its lock.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "engine/api.h"
#include "engine/engine.h"
#include "service/error_details.h"
#include "service/services.h"
#include "service/wire.h"

namespace cairn {

using ByteStream = grpc::ServerWriteReactor<grpc::ByteBuffer>;

// The bytes of one message; `end` only on the last.
using StreamFormat = grpc::ByteBuffer (*)(StreamUpdate update, const StreamEnd* end);
// Starts the generation; what it returns names it to the engine.
using StreamSubmit = std::function<StreamId(std::shared_ptr<TokenSink>)>;

struct TokenStreamOptions {
  StreamFormat format;
  ErrorSubject subject;
};

// The reactor of one call that streams what `submit` starts. `parts` outlive the call.
ByteStream* StartTokenStream(const ServiceParts& parts, const grpc::CallbackServerContext& context,
                             TokenStreamOptions options, const StreamSubmit& submit);

// The reactor of one call that reads a session's tokens back, some thousand a message.
ByteStream* StartTokenReader(Engine& engine, ReadTokensRequest request);

// The reactor of a call that is refused.
ByteStream* RefuseStream(const Status& status);

}  // namespace cairn
