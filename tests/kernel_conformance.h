// What the conformance tests of the kernels share: a backend under test with one instance for each
// number of threads, and the comparison of bits.
//
// The row-local law that all of them check: the bits of a row are those of the same row computed
// alone, at any row count, place in the batch and number of threads.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/reference_ops.h"

namespace cairn {

constexpr uint32_t kRowCountMax = 130;
constexpr double kUlp = 0x1p-24;  // of one rounding to float32, relative

template <class T>
bool SameBits(const T* a, const T* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(T)) == 0;
}

class KernelConformance : public testing::TestWithParam<reference::BackendCase> {
 protected:
  struct Instance {
    Instance(const reference::BackendCase& backend, uint32_t thread_count)
        : parts(reference::MakeBackend(backend, thread_count)),
          stream(*parts.device->NewStream(StreamUse::kCompute)),
          batch(*parts.ops->NewBatch({.rows_max = kRowCountMax})) {}
    Ops& ops() { return *parts.ops; }
    const Batch& SetBatch(std::span<const BatchRow> rows,
                          std::span<const AttentionSegment> segments) {
      batch->Set(rows, segments, *stream);
      return *batch;
    }

    Backend parts;
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Batch> batch;
  };

  void SetUp() override {
    for (uint32_t thread_count : {1, 2, 4}) {
      instances_.push_back(std::make_unique<Instance>(GetParam(), thread_count));
    }
  }
  Instance& first() { return *instances_[0]; }

  std::vector<std::unique_ptr<Instance>> instances_;
};

inline std::string CaseName(const testing::TestParamInfo<reference::BackendCase>& info) {
  return info.param.Name();
}

}  // namespace cairn
