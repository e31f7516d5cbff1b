#pragma once
// Arrays of kernel tests on a CUDA device.

#include <cuda_runtime_api.h>

#include <vector>

#include "../../kernels/cuda/check.h"
#include "../../kernels/cuda/queue.h"
#include "array.h"

namespace tandem::kernels {

/// The queue of CUDA device 0 for all tests, never destroyed.
inline cuda::Queue& device_queue() {
  static auto* queue = new cuda::Queue(0, 0);
  return *queue;
}
inline Stream device_stream() { return {0, 1, {}, &device_queue()}; }

/// A copy of an Array, its gaps included, in device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const Array<T>& host) : shape_(host.shape), strides_(host.strides), size_(host.data.size()) {
    const cuda::DeviceGuard guard(0);  // whichever device a test before this one left current
    cuda::check(cudaMalloc(&data_, size_ * sizeof(T)), "cudaMalloc");
    if (size_ > 0) cuda::check(cudaMemcpy(data_, host.data.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  View view() { return {data_, shape_.data(), strides_.data(), static_cast<int>(shape_.size()), dtype_of<T>()}; }
  T* data() { return static_cast<T*>(data_); }
  /// The elements, once the device has written them.
  Array<T> host() {
    device_queue().synchronize();
    Array<T> copy(shape_);
    copy.strides = strides_;
    copy.data.resize(size_);
    if (size_ > 0) cuda::check(cudaMemcpy(copy.data.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return copy;
  }

 private:
  void* data_ = nullptr;
  std::vector<std::int64_t> shape_, strides_;
  std::size_t size_;
};

}  // namespace tandem::kernels
