// What a request may cost before it is a message: bytes that are none, fields without number, and
// many large requests at once.
#include "service/request_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "cairn/v1/decode_service.pb.h"
#include "cairn/v1/session_service.pb.h"
#include "service/request_intake.h"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr size_t kFieldsMax = 100;

// What `bytes` are refused for as a `Message`: the field, or the message where there is none.
template <class Message>
std::string Refused(const std::string& bytes, size_t fields_max = kFieldsMax) {
  Message message;
  const Status status = ParseMessage(bytes, fields_max, message);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  return status.field().empty() ? status.message() : status.field();
}

std::string Repeated(size_t count, const std::string& bytes) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += bytes;
  return all;
}

// `bytes`, fewer than 16,384, as the value of field `number`, below 16.
std::string Field(int number, const std::string& bytes) {
  EXPECT_LT(bytes.size(), 16'384u);
  std::string field(1, static_cast<char>(number << 3 | 2));
  field += static_cast<char>(bytes.size() % 128 | 128);
  field += static_cast<char>(bytes.size() / 128);
  return field + bytes;
}

TEST(ParseMessage, NamesTheStringThatIsNotUtf8) {
  v1::CreateSessionRequest create;
  v1::ChatMessages& chat = *create.mutable_content()->mutable_chat();
  chat.add_messages()->set_content("fine");
  chat.add_messages()->set_content("broken \xc3\x28");
  EXPECT_EQ(Refused<v1::CreateSessionRequest>(create.SerializeAsString()),
            "content.chat.messages[1].content");
  v1::GenerateRequest generate;
  generate.mutable_sampling()->add_stop("\xed\xa0\x80");  // a surrogate
  EXPECT_EQ(Refused<v1::GenerateRequest>(generate.SerializeAsString()), "sampling.stop[0]");
}

TEST(ParseMessage, RefusesBytesThatAreNoMessage) {
  const std::string malformed = "the request is not a well-formed cairn.v1.GenerateRequest";
  for (const std::string& bytes : {
           std::string("\x0a\xff"),                  // a length without end
           std::string("\x0a\x05x"),                 // a value that is cut
           std::string("\x0b\x0c"),                  // a group, which proto3 has not
           std::string("\x02\x00", 2),               // field number 0
           std::string("\x00", 1),                   // and no wire type either
           std::string("\x0f"),                      // a wire type that does not exist
           Field(1, Field(2, std::string("\x0c"))),  // far inside
       }) {
    EXPECT_EQ(Refused<v1::GenerateRequest>(bytes), malformed) << testing::PrintToString(bytes);
  }
  EXPECT_EQ(Refused<v1::GenerateRequest>(""), "");
}

TEST(ParseMessage, CountsEveryKindOfField) {
  const std::string too_many_messages = Field(1, Field(2, Repeated(kFieldsMax, {"\x0a\x00", 2})));
  EXPECT_EQ(Refused<v1::TokenizeRequest>(too_many_messages), "content.chat.messages");
  const std::string stops = Field(3, Repeated(kFieldsMax, "\x4a\x01x"));
  EXPECT_EQ(Refused<v1::GenerateRequest>(stops), "sampling.stop");
  const std::string biases = Field(3, Repeated(kFieldsMax / 2, {"\x62\x02\x08\x01", 4}));
  EXPECT_EQ(Refused<v1::GenerateRequest>(biases), "sampling.logit_bias.key");
  const std::string mask = Field(2, Repeated(kFieldsMax, {"\x0a\x00", 2}));
  EXPECT_EQ(Refused<v1::UpdateSessionRequest>(mask), "update_mask.paths");
  EXPECT_EQ(Refused<v1::DetokenizeRequest>(Field(1, std::string(kFieldsMax, '\x05'))), "ids");
  EXPECT_EQ(Refused<v1::DetokenizeRequest>(Repeated(kFieldsMax + 1, "\x08\x05")), "ids");
  // What Protobuf would keep as unknown, and what it would overwrite.
  EXPECT_EQ(Refused<v1::DetokenizeRequest>(Repeated(kFieldsMax + 1, {"\x78\x00", 2})), "15");
  EXPECT_EQ(Refused<v1::DetokenizeRequest>(Repeated(kFieldsMax + 1, {"\x7a\x00", 2})), "15");
  EXPECT_EQ(Refused<v1::GetSessionRequest>(Repeated(kFieldsMax + 1, "\x0a\x01x")), "name");
}

TEST(ParseMessage, TheBoundIsExact) {
  // One field that is packed, and its elements; an element may take several bytes.
  v1::DetokenizeRequest request;
  for (uint32_t i = 0; i + 1 < kFieldsMax; ++i) request.add_ids(i << 7);
  v1::DetokenizeRequest parsed;
  ASSERT_TRUE(ParseMessage(request.SerializeAsString(), kFieldsMax, parsed).ok());
  EXPECT_EQ(parsed.ids_size(), static_cast<int>(kFieldsMax - 1));
  request.add_ids(1);
  const Status status = ParseMessage(request.SerializeAsString(), kFieldsMax, parsed);
  EXPECT_EQ(status.field(), "ids");
  EXPECT_THAT(status.message(), HasSubstr("at most 100 fields"));
}

TEST(ParseMessage, TakesWhatIsAtTheLimitOfEveryField) {
  constexpr uint32_t kContext = 5000;
  v1::CreateSessionRequest create;
  v1::Session& session = *create.mutable_session();
  v1::SamplingParams& sampling = *session.mutable_sampling();
  for (uint32_t i = 0; i < 1024; ++i) (*sampling.mutable_logit_bias())[i] = 1;
  for (uint32_t i = 0; i < 64; ++i) sampling.add_stop_token_ids(i);
  for (int i = 0; i < 16; ++i) sampling.add_stop("stop");
  for (int i = 0; i < 32; ++i) (*session.mutable_annotations())[std::to_string(i)] = "x";
  for (uint32_t i = 0; i < kContext; ++i) {
    v1::ChatMessage& message = *create.mutable_content()->mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content("x");
  }
  EXPECT_EQ(
      Refused<v1::CreateSessionRequest>(create.SerializeAsString(), RequestFieldsMax(kContext)),
      "");
}

TEST(RequestIntake, BoundsTheBytesOfLargeRequestsTogether) {
  constexpr size_t kLarge = RequestIntake::kSmallBytesMax + 1;
  RequestIntake intake(kFieldsMax, 2 * kLarge);
  std::vector<RequestIntake::Ticket> tickets;
  for (int i = 0; i < 2; ++i) {
    Result<RequestIntake::Ticket> ticket = intake.Admit(kLarge);
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*std::move(ticket));
  }
  EXPECT_EQ(intake.bytes_in_flight(), 2 * kLarge);
  const Result<RequestIntake::Ticket> refused = intake.Admit(kLarge);
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(refused.status().retry_after());
  EXPECT_TRUE(intake.Admit(RequestIntake::kSmallBytesMax).ok());  // small ones always pass
  tickets.pop_back();
  EXPECT_TRUE(intake.Admit(kLarge).ok());
  tickets.clear();
  EXPECT_EQ(intake.bytes_in_flight(), 0u);
  EXPECT_FALSE(intake.Admit(2 * kLarge + 1).ok());
  EXPECT_EQ(intake.bytes_in_flight(), 0u);
}

}  // namespace
}  // namespace cairn
