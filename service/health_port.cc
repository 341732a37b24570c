#include "service/health_port.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <utility>
#include <vector>

namespace cairn {
namespace {

constexpr const char* kFlag = "--health-listen";

// Leaves out what is registered for every server of the process: reflection.
class WithoutPlugins final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
  }
};

void SetBounds(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // in use is an error
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);
  builder.SetMaxReceiveMessageSize(1 << 10);
}

}  // namespace

Result<std::unique_ptr<HealthPort>> HealthPort::Start(const ListenAddress& listen) {
  RETURN_IF_ERROR(CheckCanListen(kFlag, listen));
  std::unique_ptr<HealthPort> health(new HealthPort());
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<WithoutPlugins>());
  SetBounds(builder);
  // Says UNIMPLEMENTED to all but health. A server needs one service that was registered by hand.
  builder.RegisterCallbackGenericService(health->others_.get());
  int port = 0;
  builder.AddListeningPort(listen.ToString(), grpc::InsecureServerCredentials(), &port);
  health->server_ = builder.BuildAndStart();
  if (health->server_ == nullptr || port == 0) {
    return Unavailable(std::string(kFlag) + ": cannot listen on " + listen.ToString());
  }
  health->address_ = {.host = listen.host, .port = static_cast<uint16_t>(port)};
  health->Set("", false);  // until its owner knows
  return health;
}

HealthPort::HealthPort() : others_(std::make_unique<grpc::CallbackGenericService>()) {}

HealthPort::~HealthPort() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void HealthPort::Set(const std::string& service, bool is_serving) {
  server_->GetHealthCheckService()->SetServingStatus(service, is_serving);
}

}  // namespace cairn
