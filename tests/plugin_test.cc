// How the CUDA backend is found, and what is said where it is not: no GPU, driver or toolkit here.
#include "kernels/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "kernels/backend_choice.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kSomeDriver = "libc.so.6";  // any library that is there

CudaBackendOptions Options(const std::string& plugin) {
  return {.plugin = plugin, .driver = kSomeDriver};
}

// Every refusal is one line.
Status Refusal(const CudaBackendOptions& options) {
  const Result<Backend> backend = LoadCudaBackend(options);
  EXPECT_FALSE(backend.ok());
  EXPECT_THAT(backend.status().message(), Not(HasSubstr("\n")));
  return backend.status();
}

TEST(Plugin, MayBeMissing) {
  const Status status = Refusal(Options("/nowhere/libcairn_cuda.so"));
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(status.message(),
            "this build has no CUDA plugin: there is no /nowhere/libcairn_cuda.so");
}

TEST(Plugin, IsNotLoadedWithoutADriver) {
  const Status status = Refusal({.plugin = CAIRN_GOOD_PLUGIN, .driver = "libnodriver.so.1"});
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), StartsWith("there is no NVIDIA driver: libnodriver.so.1: "));
}

TEST(Plugin, SaysWhichLibraryItMisses) {
  const ScratchFolder scratch;
  const std::string path = scratch.File("libcairn_cuda.so");
  std::ofstream(path) << "no library";
  const Status status = Refusal(Options(path));
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), StartsWith("the CUDA plugin cannot be loaded: " + path + ": "));
}

TEST(Plugin, MustBeOfTheSameBuild) {
  const Status status = Refusal(Options(CAIRN_FOREIGN_PLUGIN));
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(), CAIRN_FOREIGN_PLUGIN " is a plugin of another build");
}

TEST(Plugin, SaysWhatItsDeviceLacks) {
  const Status status = Refusal(Options(CAIRN_DEVICELESS_PLUGIN));
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(), "CUDA: there is no device");
}

TEST(Plugin, GivesItsBackend) {
  CudaBackendOptions options = Options(CAIRN_GOOD_PLUGIN);
  options.mode = ComputeMode::kFast;
  const Result<Backend> backend = LoadCudaBackend(options);
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  EXPECT_THAT(backend->arithmetic, testing::EndsWith("-fast"));
  EXPECT_TRUE(backend->device->Allocate(4096).ok());
}

#ifdef CAIRN_CUDA_PLUGIN
// The real one, of this build: it has a device, or says what keeps it from one.
TEST(Plugin, OfCudaAnswers) {
  const Result<Backend> backend = LoadCudaBackend(Options(CAIRN_CUDA_PLUGIN));
  if (backend.ok()) {
    EXPECT_EQ(backend->arithmetic, "cuda-exact");
  } else {
    EXPECT_THAT(backend.status().message(), StartsWith("CUDA: "));
  }
}
#endif

BackendOptions Choice(BackendKind kind, const std::string& plugin) {
  return {.kind = kind, .cpu = {.thread_count = 1}, .cuda = Options(plugin)};
}

TEST(BackendChoice, AutoTakesCudaWhereItCanBeHadAndSaysWhy) {
  EXPECT_EQ(ChooseBackend(Choice(BackendKind::kAuto, CAIRN_GOOD_PLUGIN))->reason,
            "cuda: there is a device");
  EXPECT_EQ(ChooseBackend(Choice(BackendKind::kAuto, CAIRN_DEVICELESS_PLUGIN))->reason,
            "cpu: CUDA: there is no device");
  EXPECT_EQ(ChooseBackend(Choice(BackendKind::kCuda, CAIRN_GOOD_PLUGIN))->reason,
            "cuda: asked for");
  EXPECT_EQ(ChooseBackend(Choice(BackendKind::kCpu, CAIRN_GOOD_PLUGIN))->reason, "cpu: asked for");
}

TEST(BackendChoice, WhatIsAskedForIsNotReplaced) {
  EXPECT_EQ(ChooseBackend(Choice(BackendKind::kCuda, CAIRN_DEVICELESS_PLUGIN)).status().message(),
            "CUDA: there is no device");
}

TEST(BackendChoice, HasThreeNames) {
  EXPECT_EQ(ParseBackendKind("auto"), BackendKind::kAuto);
  EXPECT_EQ(ParseBackendKind("cpu"), BackendKind::kCpu);
  EXPECT_EQ(ParseBackendKind("cuda"), BackendKind::kCuda);
  EXPECT_EQ(ParseBackendKind("CUDA"), std::nullopt);
}

}  // namespace
}  // namespace cairn
