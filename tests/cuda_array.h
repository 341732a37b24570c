// For tests that speak to the CUDA runtime themselves, on a device or an emulated one: a stream,
// and arrays in device memory, each gone at the end of its scope. Everything that fails fails the
// test.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace cairn {

class TestStream {
 public:
  TestStream() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  cudaStream_t get() const { return stream_; }
  cudaError_t Synchronize() const { return cudaStreamSynchronize(stream_); }

 private:
  cudaStream_t stream_ = nullptr;
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
  }
  DeviceArray(const std::vector<T>& values, const TestStream& stream) : DeviceArray(values.size()) {
    EXPECT_EQ(cudaMemcpyAsync(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice,
                              stream.get()),
              cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return data_; }
  size_t count() const { return count_; }
  size_t size_bytes() const { return count_ * sizeof(T); }
  std::vector<T> Read(const TestStream& stream) const {
    std::vector<T> values(count_);
    EXPECT_EQ(
        cudaMemcpyAsync(values.data(), data_, size_bytes(), cudaMemcpyDeviceToHost, stream.get()),
        cudaSuccess);
    EXPECT_EQ(stream.Synchronize(), cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  const size_t count_;
};

}  // namespace cairn
