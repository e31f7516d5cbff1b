#pragma once
// What the simulator's tests share: memory of a simulated GPU, and what the simulator reports.

#include <string>
#include <vector>

#include "../../kernels/cuda/queue.h"
#include "../../kernels/simt/control.h"
#include "../../kernels/simt/fault.h"
#include "../../kernels/simt/scheduler.h"
#include "../catch.h"

namespace simt = tandem::simt;

/// The tests read the reports; nobody needs to see them.
inline const bool quiet = (simt::print_reports(false), true);

/// `n` ints in the memory of a device.
struct Ints {
  explicit Ints(std::size_t n, int device = 0) : size(n) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    REQUIRE(cudaMalloc(&memory, n * sizeof(int)) == cudaSuccess);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
  }
  ~Ints() { static_cast<void>(cudaFree(memory)); }
  Ints(const Ints&) = delete;
  Ints& operator=(const Ints&) = delete;
  int* data() const { return static_cast<int*>(memory); }
  std::vector<int> host() const {
    std::vector<int> v(size);
    CHECK(cudaMemcpy(v.data(), memory, size * sizeof(int), cudaMemcpyDeviceToHost) == cudaSuccess);
    return v;
  }
  void* memory = nullptr;
  std::size_t size;
};

/// What the simulator reports of a kernel that is wrong, which `run` launches on the stream that it gets; the device is
/// dead then, and revived for the next test.
template <class F>
std::string report_of(F run) {
  static_cast<void>(simt::take_report());
  {
    const tandem::kernels::cuda::StreamHandle stream(0);
    run(stream.get());
  }
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  simt::revive_devices();
  static_cast<void>(cudaGetLastError());
  return simt::take_report();
}
