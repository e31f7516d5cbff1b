// How the simulator runs blocks, warps and streams, and what it says of kernels with faults.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../kernels/cuda/launch.h"
#include "../../kernels/error.h"
#include "../../kernels/simt/options.h"
#include "../catch.h"
#include "simulated.h"

using namespace tandem;
using tandem::kernels::cuda::launch;

/// For AddressSanitizer: a kernel that a fault ends does not come back to free what its threads hold.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:tandem::simt::Fiber::State::start"; }

namespace {

__global__ void places(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = static_cast<int>(1000 * block + thread);
}

/// Turns each block's part round, through shared memory.
__global__ void reverse(int* data) {
  TANDEM_DYNAMIC_SHARED(int, copy);
  int* part = data + blockIdx.x * blockDim.x;
  copy[threadIdx.x] = part[threadIdx.x];
  __syncthreads();
  part[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

__global__ void barrier_counts(int* out) {
  const int odd = __syncthreads_count(static_cast<int>(threadIdx.x % 2));
  const int any = __syncthreads_or(threadIdx.x == 3), all = __syncthreads_and(threadIdx.x < 100);
  if (threadIdx.x == 0) {
    out[0] = odd;
    out[1] = any;
    out[2] = all;
  }
}

__global__ void shuffles(int* out) {
  const int x = static_cast<int>(threadIdx.x) * 10;
  int* row = out + 5 * threadIdx.x;
  row[0] = __shfl_sync(0xffffffffu, x, 5);
  row[1] = __shfl_down_sync(0xffffffffu, x, 3);
  row[2] = __shfl_up_sync(0xffffffffu, x, 3, 8);
  row[3] = __shfl_xor_sync(0xffffffffu, x, 1);
  row[4] = static_cast<int>(__ballot_sync(0xffffffffu, threadIdx.x % 4 == 0));
}

/// Both halves of the warp meet among themselves, in branches of their own.
__global__ void halves(double* out) {
  const double x = threadIdx.x;
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_sync(0x0000ffffu, x, 15);
  } else {
    out[threadIdx.x] = __shfl_sync(0xffff0000u, x, 16);
  }
}

__global__ void count(int* total, float* sum) {
  atomicAdd(total, 1);
  atomicAdd(sum, 0.5f);
  atomicMax(total + 1, static_cast<int>(threadIdx.x));
}

__global__ void diverge(int* out) {
  if (threadIdx.x < 7) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void two_barriers() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void outside_mask(int* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, threadIdx.x < 16 ? 20 : 0); }

__global__ void write_at(int* out, int i) {
  if (threadIdx.x == 2) out[i] = 1;
}

__global__ void add_one(int* data) { data[threadIdx.x] += 1; }

}  // namespace

TEST_CASE("simt: every thread knows its place") {
  const Ints out(6 * 24);
  launch(places, dim3(3, 2), dim3(4, 3, 2), 0, nullptr, out.data());
  const std::vector<int> v = out.host();
  for (int i = 0; i < 6 * 24; ++i) CHECK(v[static_cast<std::size_t>(i)] == 1000 * (i / 24) + i % 24);
}

TEST_CASE("simt: barriers hold the block together") {
  const Ints out(512);
  std::vector<int> v(512);
  for (int i = 0; i < 512; ++i) v[static_cast<std::size_t>(i)] = i;
  REQUIRE(cudaMemcpy(out.data(), v.data(), 2048, cudaMemcpyHostToDevice) == cudaSuccess);
  launch(reverse, 4, 128, 128 * sizeof(int), nullptr, out.data());
  v = out.host();
  for (int i = 0; i < 512; ++i) CHECK(v[static_cast<std::size_t>(i)] == i / 128 * 128 + 127 - i % 128);

  launch(barrier_counts, 1, 101, 0, nullptr, out.data());
  v = out.host();
  CHECK(v[0] == 50);
  CHECK(v[1] == 1);
  CHECK(v[2] == 0);
}

TEST_CASE("simt: shuffles and ballots") {
  const Ints out(5 * 32);
  launch(shuffles, 1, 32, 0, nullptr, out.data());
  const std::vector<int> v = out.host();
  for (int i = 0; i < 32; ++i) {
    const int* row = v.data() + 5 * i;
    CHECK(row[0] == 50);
    CHECK(row[1] == 10 * (i + 3 < 32 ? i + 3 : i));
    CHECK(row[2] == 10 * (i % 8 >= 3 ? i - 3 : i));
    CHECK(row[3] == 10 * (i ^ 1));
    CHECK(row[4] == 0x11111111);
  }
  const Ints pairs(64);
  launch(halves, 1, 32, 0, nullptr, static_cast<double*>(pairs.memory));
  std::vector<double> half(32);
  REQUIRE(cudaMemcpy(half.data(), pairs.memory, 256, cudaMemcpyDeviceToHost) == cudaSuccess);
  for (std::size_t i = 0; i < 32; ++i) CHECK(half[i] == (i < 16 ? 15 : 16));
}

TEST_CASE("simt: atomics lose nothing") {
  const Ints out(3);
  REQUIRE(cudaMemset(out.memory, 0, 12) == cudaSuccess);
  launch(count, 20, 96, 0, nullptr, out.data(), static_cast<float*>(out.memory) + 2);
  const std::vector<int> v = out.host();
  CHECK(v[0] == 1920);
  CHECK(v[1] == 95);
  float sum = 0;
  CHECK(cudaMemcpy(&sum, out.data() + 2, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(sum == 960.0f);
}

TEST_CASE("simt: a barrier that some threads never reach is reported") {
  const Ints out(64);
  const std::string text = report_of([&](cudaStream_t stream) { launch(diverge, 1, 64, 0, stream, out.data()); });
  CHECK_THAT(text, ContainsSubstring("barrier divergence") && ContainsSubstring("diverge") &&
                       ContainsSubstring("7 threads have ended, 57 wait") && ContainsSubstring("test_blocks.cpp:"));
  const std::string two = report_of([&](cudaStream_t stream) { launch(two_barriers, 1, 64, 0, stream); });
  CHECK_THAT(two, ContainsSubstring("some threads of the block wait at") && ContainsSubstring("two_barriers"));
}

TEST_CASE("simt: a shuffle from a lane outside its mask is reported") {
  const Ints out(64);
  const std::string text = report_of([&](cudaStream_t stream) { launch(outside_mask, 1, 16, 0, stream, out.data()); });
  CHECK_THAT(text, ContainsSubstring("reads lane 20, which is not in its mask") && ContainsSubstring("outside_mask"));
}

TEST_CASE("simt: a kernel that writes past an allocation is abandoned, with the place") {
  const Ints out(64);
  const std::string text = report_of([&](cudaStream_t stream) { launch(write_at, 1, 4, 0, stream, out.data(), 64); });
  CHECK_THAT(text, ContainsSubstring("illegal access to 0 bytes past the end of 256 bytes on device 0") &&
                       ContainsSubstring("write_at") && ContainsSubstring("block (0, 0, 0), thread (2, 0, 0)"));
  // Where addr2line is, the line too.
  if (std::system("command -v addr2line >/dev/null 2>&1") == 0) CHECK_THAT(text, ContainsSubstring("test_blocks.cpp:"));
}

TEST_CASE("simt: a kernel that uses freed memory is abandoned") {
  int* freed = nullptr;
  {
    const Ints out(64);
    freed = out.data();
  }
  const std::string text = report_of([&](cudaStream_t stream) { launch(write_at, 1, 4, 0, stream, freed, 0); });
  CHECK_THAT(text, ContainsSubstring("freed or never allocated memory on device 0"));
}

TEST_CASE("simt: shapes that no GPU takes are refused") {
  CHECK_THROWS_AS(launch(two_barriers, 1, 1025, 0, nullptr), CudaError);
  CHECK_THROWS_AS(launch(two_barriers, dim3(1, 70000), 32, 0, nullptr), CudaError);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("simt: streams keep their order, and events order streams") {
  const kernels::cuda::StreamHandle first(0), second(0);
  const Ints data(32);
  REQUIRE(cudaMemset(data.memory, 0, 128) == cudaSuccess);
  for (int round = 0; round < 50; ++round) {
    launch(add_one, 1, 32, 0, first.get(), data.data());
    second.wait_for(first);
    launch(add_one, 1, 32, 0, second.get(), data.data());
    first.wait_for(second);
  }
  first.synchronize();
  CHECK(data.host() == std::vector<int>(32, 100));
}

TEST_CASE("simt: memory has a limit, and copies stay within allocations") {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, simt::options().memory + 1) == cudaErrorMemoryAllocation);
  CHECK(memory == nullptr);
  const Ints data(8);
  char host[64] = {};
  CHECK(cudaMemcpy(data.memory, host, 33, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(data.memory, host, 32, cudaMemcpyDeviceToHost) == cudaErrorInvalidMemcpyDirection);
  CHECK(cudaFree(host) == cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}
