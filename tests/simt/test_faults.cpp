// Kernels and programs with faults, and what the simulator says of them. Compiled with -fsanitize=thread, so that the
// kernels tell of their accesses; see kernels/simt/instrument.h.

#include <cublas_v2.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "../../kernels/cuda/launch.h"
#include "../../kernels/simt/control.h"
#include "../child.h"
#include "simulated.h"

using namespace tandem;
using tandem::kernels::cuda::launch;
using tandem::kernels::cuda::StreamHandle;

namespace {

// Options are read once, before main().
const bool checking = setenv("TANDEM_SIM_CHECK", "memory,races,unwritten,streams", 0) == 0;

std::string here(int line) { return "at test_faults.cpp:" + std::to_string(line); }

/// Ints that are zero.
struct Zeros : Ints {
  explicit Zeros(std::size_t n, int device = 0) : Ints(n, device) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    REQUIRE(cudaMemset(memory, 0, n * sizeof(int)) == cudaSuccess);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
  }
};

/// Runs what must not be reported.
template <class F>
void expect_silence(F run) {
  static_cast<void>(simt::take_report());
  CHECK_NOTHROW(run());
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(simt::take_report() == "");
  simt::revive_devices();
}

constexpr int kWriteAt = __LINE__ + 2;
__global__ void write_at(int* out, int i) {
  if (threadIdx.x == 2) out[i] = 1;
}

constexpr int kReadAt = __LINE__ + 2;
__global__ void read_at(const int* in, int i, int* out) {
  if (threadIdx.x == 1) out[0] = in[i];
}

// Too long by one: thread 31 reads what is behind the 32 ints.
__global__ void shift(int* out) {
  TANDEM_DYNAMIC_SHARED(int, copy);
  copy[threadIdx.x] = out[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = copy[threadIdx.x + 1];
}
constexpr int kShift = __LINE__ - 2;

// ---------------------------------------------------------------------------------------------------------------------

__global__ void diverge(int* out) {
  if (threadIdx.x < 7) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}
constexpr int kDiverge = __LINE__ - 3;

__global__ void not_in_own_mask() { __syncwarp(0x0000ffffu); }
constexpr int kNotInOwnMask = __LINE__ - 1;

/// The lower half waits for the upper, which never comes.
__global__ void masks_differ() {
  if (threadIdx.x < 16) {
    __syncwarp(0xffffffffu);
  } else {
    __syncwarp(0xffff0000u);
  }
}
constexpr int kMasksDiffer = __LINE__ - 5;

__global__ void outside_mask(int* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 20); }
constexpr int kOutsideMask = __LINE__ - 1;

// ---------------------------------------------------------------------------------------------------------------------

/// Turns a block's part round. The barrier between writing and reading is missing.
__global__ void reverse(int* data) {
  __shared__ int copy[64];
  copy[threadIdx.x] = 0;
  __syncthreads();
  copy[threadIdx.x] = data[threadIdx.x];
  data[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}
constexpr int kReverseWrite = __LINE__ - 3, kReverseRead = __LINE__ - 2;

/// The barrier before the second round's writing is missing.
__global__ void two_rounds(int* data) {
  TANDEM_DYNAMIC_SHARED(int, total);
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 5) total[0] = round;
    __syncthreads();
    data[threadIdx.x] += total[0];
  }
}
constexpr int kRoundWrite = __LINE__ - 5, kRoundRead = __LINE__ - 3;

/// Neighbours exchange values within a warp; `synced`: as it should be done.
__global__ void neighbours(int* data, bool synced) {
  __shared__ int copy[64];
  copy[threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < 3; ++round) {
    copy[threadIdx.x] = data[threadIdx.x];
    if (synced) __syncwarp();
    data[threadIdx.x] = copy[threadIdx.x ^ 1u];
    if (synced) __syncwarp();
  }
}
constexpr int kNeighboursWrite = __LINE__ - 6, kNeighboursRead = __LINE__ - 4;

/// Orders lanes with shuffles, which order no memory.
__global__ void shuffled_neighbours(int* data) {
  __shared__ int copy[32];
  copy[threadIdx.x] = data[threadIdx.x];
  __shfl_sync(0xffffffffu, 0, 0);
  data[threadIdx.x] = copy[threadIdx.x ^ 1u];
}

/// Several lanes read a slot, one writes it: the pattern of a counting sort.
__global__ void slots(int* out) {
  __shared__ int slot[4];
  if (threadIdx.x < 4) slot[threadIdx.x] = 0;
  __syncwarp();
  for (unsigned round = 0; round < 3; ++round) {
    const unsigned mine = threadIdx.x % 4;
    const int met = slot[mine];
    __syncwarp();
    if (threadIdx.x < 4) slot[mine] = met + 8;
    __syncwarp();
  }
  if (threadIdx.x < 4) out[threadIdx.x] = slot[threadIdx.x];
}

/// Halves of a warp with barriers of their own.
__global__ void half_warps(int* out, bool apart) {
  __shared__ int shared[32];
  const unsigned mask = threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u;
  shared[threadIdx.x] = 0;
  __syncwarp();
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncwarp(mask);
  out[threadIdx.x] = shared[apart ? threadIdx.x ^ 1u : threadIdx.x ^ 16u];
}

__global__ void count(int* total, bool atomic) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (atomic) {
    atomicAdd(&sum, 1);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(total, sum);
  } else {
    atomicAdd(&sum, 1);
    total[blockIdx.x * 64 + threadIdx.x] = sum;
  }
}
constexpr int kCountRead = __LINE__ - 3;

__global__ void same_place(int* out) { out[0] = static_cast<int>(blockIdx.x); }
constexpr int kSamePlace = __LINE__ - 1;

/// Each block reads what the next writes.
__global__ void shifted_blocks(int* data) {
  const int next = data[blockIdx.x + 1];
  data[blockIdx.x] = next;
}

// ---------------------------------------------------------------------------------------------------------------------

__global__ void unwritten_shared(int* out) {
  __shared__ int values[32];
  if (threadIdx.x != 9) values[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}
constexpr int kUnwrittenShared = __LINE__ - 2;

__global__ void copy_ints(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x]; }
constexpr int kCopyInts = __LINE__ - 1;

/// 16 bytes at once, as a structure, which some compilers leave to memcpy.
__global__ void copy_packs(const float4* in, float4* out) { out[threadIdx.x] = in[threadIdx.x]; }
constexpr int kCopyPacks = __LINE__ - 1;

__global__ void fill_ints(int* out) { out[threadIdx.x] = 7; }
constexpr int kFillInts = __LINE__ - 1;

// ---------------------------------------------------------------------------------------------------------------------

/// Makes one of each, and two pieces of device memory, and forgets them.
void make_things() {
  void* memory = nullptr;
  cudaEvent_t event = nullptr;
  cudaStream_t stream = nullptr;
  for (int i = 0; i < 3; ++i) REQUIRE(cudaMalloc(&memory, 100) == cudaSuccess);
  REQUIRE(cudaFree(memory) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&memory, 10, cudaHostAllocDefault) == cudaSuccess);
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
}
constexpr int kThings = __LINE__ - 6;

}  // namespace

TEST_CASE("fault: a kernel that touches what lies outside an allocation, to the byte") {
  const Ints out(60);
  std::string text = report_of([&](cudaStream_t s) { launch(write_at, 2, 4, 0, s, out.data(), 60); });
  CHECK_THAT(text, ContainsSubstring("illegal access to 0 bytes past the end of 240 bytes on device 0") &&
                       ContainsSubstring("a write of 4 bytes") && ContainsSubstring(here(kWriteAt)) &&
                       ContainsSubstring("write_at") && ContainsSubstring("block (0, 0, 0), thread (2, 0, 0)"));
  text = report_of([&](cudaStream_t s) { launch(read_at, 1, 4, 0, s, out.data(), -2, out.data()); });
  CHECK_THAT(text, ContainsSubstring("illegal access to 8 bytes before the beginning of 240 bytes on device 0") &&
                       ContainsSubstring("a read of 4 bytes") && ContainsSubstring(here(kReadAt)) &&
                       ContainsSubstring("thread (1, 0, 0)"));
}

TEST_CASE("fault: a kernel that uses freed memory") {
  int* freed = nullptr;
  {
    const Zeros out(64);
    freed = out.data();
  }
  const std::string text = report_of([&](cudaStream_t s) { launch(read_at, 1, 4, 0, s, freed, 3, freed); });
  CHECK_THAT(text, ContainsSubstring("freed or never allocated memory on device 0") && ContainsSubstring("read_at") &&
                       ContainsSubstring(here(kReadAt)));
}

TEST_CASE("fault: a kernel that leaves its dynamic shared memory") {
  const Zeros out(32);
  const std::string text = report_of([&](cudaStream_t s) { launch(shift, 1, 32, 32 * sizeof(int), s, out.data()); });
  CHECK_THAT(text, ContainsSubstring("a read of 4 bytes outside dynamic shared memory: at byte 128 of 128") &&
                       ContainsSubstring(here(kShift)) && ContainsSubstring("thread (31, 0, 0)"));
}

TEST_CASE("fault: a kernel that touches another device's memory without peer access") {
  const Zeros near(8), far(8, 3);
  const std::string text = report_of([&](cudaStream_t s) { launch(read_at, 1, 4, 0, s, far.data(), 2, near.data()); });
  CHECK_THAT(text,
             ContainsSubstring("a read of 4 bytes of another device's memory, without peer access from device 0") &&
                 ContainsSubstring("byte 8 of 32 bytes on device 3") && ContainsSubstring(here(kReadAt)) &&
                 ContainsSubstring("read_at"));
  REQUIRE(cudaDeviceEnablePeerAccess(2, 0) == cudaSuccess);
  const Zeros peer(8, 2);
  expect_silence([&] { launch(read_at, 1, 4, 0, nullptr, peer.data(), 2, near.data()); });
}

TEST_CASE("fault: a barrier that some threads never reach") {
  const Zeros out(64);
  const std::string text = report_of([&](cudaStream_t s) { launch(diverge, 1, 64, 0, s, out.data()); });
  CHECK_THAT(text, ContainsSubstring("barrier divergence in kernel") && ContainsSubstring("diverge, block (0, 0, 0)") &&
                       ContainsSubstring("7 threads have ended, 57 wait, thread (7, 0, 0) for a barrier at") &&
                       ContainsSubstring("test_faults.cpp:" + std::to_string(kDiverge)));
}

TEST_CASE("fault: warp functions with a wrong mask") {
  const Zeros out(64);
  std::string text = report_of([&](cudaStream_t s) { launch(not_in_own_mask, 1, 32, 0, s); });
  CHECK_THAT(text, ContainsSubstring("lane 16 is not in its own mask") && ContainsSubstring("thread (16, 0, 0)") &&
                       ContainsSubstring("test_faults.cpp:" + std::to_string(kNotInOwnMask)));
  text = report_of([&](cudaStream_t s) { launch(masks_differ, 1, 32, 0, s); });
  CHECK_THAT(text, ContainsSubstring("16 threads have ended, 16 wait") &&
                       ContainsSubstring("for other lanes of its warp (mask 0xffffffff)") &&
                       ContainsSubstring("test_faults.cpp:" + std::to_string(kMasksDiffer)));
  text = report_of([&](cudaStream_t s) { launch(outside_mask, 1, 16, 0, s, out.data()); });
  CHECK_THAT(text, ContainsSubstring("reads lane 20, which is not in its mask") &&
                       ContainsSubstring("test_faults.cpp:" + std::to_string(kOutsideMask)));
}

TEST_CASE("fault: shared memory without the barrier that it needs") {
  const Zeros data(64);
  std::string text = report_of([&](cudaStream_t s) { launch(reverse, 1, 64, 0, s, data.data()); });
  CHECK_THAT(text, ContainsSubstring("a race: a write of 4 bytes of shared memory, " + here(kReverseWrite) +
                                     ", and another thread's read, " + here(kReverseRead)) &&
                       ContainsSubstring("kernel reverse, block (0, 0, 0), thread (0, 0, 0)"));
  text = report_of([&](cudaStream_t s) { launch(two_rounds, 1, 64, 64, s, data.data()); });
  CHECK_THAT(text, ContainsSubstring("a race: a write of 4 bytes of shared memory, " + here(kRoundWrite) +
                                     ", and another thread's read, " + here(kRoundRead) + ", with no barrier between"));
  CHECK_THAT(text, ContainsSubstring("two_rounds, block (0, 0, 0), thread (5, 0, 0)"));
}

TEST_CASE("fault: lanes of a warp without __syncwarp") {
  const Zeros data(64);
  const std::string text = report_of([&](cudaStream_t s) { launch(neighbours, 1, 64, 0, s, data.data(), false); });
  CHECK_THAT(text, ContainsSubstring("a race: a write of 4 bytes of shared memory, " + here(kNeighboursWrite) +
                                     ", and another thread's read, " + here(kNeighboursRead)));
  CHECK_THAT(report_of([&](cudaStream_t s) { launch(shuffled_neighbours, 1, 32, 0, s, data.data()); }),
             ContainsSubstring("a race: a read of 4 bytes of shared memory"));
  CHECK_THAT(report_of([&](cudaStream_t s) { launch(half_warps, 1, 32, 0, s, data.data(), false); }),
             ContainsSubstring("a race: a read of 4 bytes of shared memory"));
}

TEST_CASE("what barriers, warps and atomics order is no race") {
  const Zeros data(64);
  expect_silence([&] {
    launch(neighbours, 1, 64, 0, nullptr, data.data(), true);
    launch(slots, 1, 32, 0, nullptr, data.data());
    launch(half_warps, 1, 32, 0, nullptr, data.data(), true);
    launch(count, 1, 64, 0, nullptr, data.data(), true);
  });
}

TEST_CASE("fault: threads of a launch that use the same device memory in no order") {
  const Zeros data(256);
  std::string text = report_of([&](cudaStream_t s) { launch(same_place, 3, 1, 0, s, data.data()); });
  CHECK_THAT(text, ContainsSubstring("a race: a write of 4 bytes, byte 0 of 1024 bytes on device 0, " +
                                     here(kSamePlace) + ", and another thread's write, " + here(kSamePlace)) &&
                       ContainsSubstring("same_place, block (1, 0, 0), thread (0, 0, 0)"));
  text = report_of([&](cudaStream_t s) { launch(shifted_blocks, 4, 1, 0, s, data.data()); });
  CHECK_THAT(text, ContainsSubstring("a race: a write of 4 bytes, byte 4 of 1024 bytes on device 0"));
  text = report_of([&](cudaStream_t s) { launch(count, 1, 64, 0, s, data.data(), false); });
  CHECK_THAT(text, ContainsSubstring("a race: ") && ContainsSubstring(here(kCountRead)));
}

TEST_CASE("fault: kernels that read memory that nothing has written") {
  const Ints fresh(32), out(64);
  std::string text = report_of([&](cudaStream_t s) { launch(unwritten_shared, 2, 32, 0, s, out.data()); });
  CHECK_THAT(text, ContainsSubstring("a read of 4 bytes of shared memory, which nothing has written in this block") &&
                       ContainsSubstring(here(kUnwrittenShared)) && ContainsSubstring("thread (9, 0, 0)"));

  const auto written = [&] { REQUIRE(cudaMemset(fresh.memory, 0, 20 * sizeof(int)) == cudaSuccess); };
  written();
  text = report_of([&](cudaStream_t s) { launch(copy_ints, 1, 32, 0, s, fresh.data(), out.data()); });
  CHECK_THAT(text,
             ContainsSubstring("a read of 4 bytes, which nothing has written: byte 80 of 128 bytes on device 0") &&
                 ContainsSubstring(here(kCopyInts)) && ContainsSubstring("copy_ints, block (0, 0, 0), thread (20"));
}

TEST_CASE("fault: structures of 16 bytes that nothing has written, or that lie outside") {
  const Ints fresh(32), out(32);
  REQUIRE(cudaMemset(fresh.memory, 0, 64) == cudaSuccess);
  const auto* in = static_cast<const float4*>(fresh.memory);
  auto* to = static_cast<float4*>(out.memory);
  expect_silence([&] { launch(copy_packs, 1, 4, 0, nullptr, in, to); });
  std::string text = report_of([&](cudaStream_t s) { launch(copy_packs, 1, 8, 0, s, in, to); });
  CHECK_THAT(text, ContainsSubstring("a read of 16 bytes, which nothing has written: byte 64 of 128 bytes") &&
                       ContainsSubstring(here(kCopyPacks)) && ContainsSubstring("thread (4, 0, 0)"));
  text = report_of([&](cudaStream_t s) { launch(copy_packs, 1, 1, 0, s, in, to + 8); });
  CHECK_THAT(text, ContainsSubstring("illegal access to 0 bytes past the end of 128 bytes") &&
                       ContainsSubstring("a write of 16 bytes") && ContainsSubstring(here(kCopyPacks)));
}

TEST_CASE("fault: memory that an allocator gives out again is unwritten") {
  const Zeros data(32), out(32);
  simt::mark_unwritten(data.memory, 64);
  CHECK_THAT(report_of([&](cudaStream_t s) { launch(copy_ints, 1, 32, 0, s, data.data(), out.data()); }),
             ContainsSubstring("which nothing has written: byte 0 of 128 bytes"));
}

TEST_CASE("copies carry what is written and what is not") {
  const Ints fresh(32), copy(32), out(32);
  int three[3] = {1, 2, 3};
  REQUIRE(cudaMemcpy(fresh.memory, three, sizeof three, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaMemcpy(copy.memory, fresh.memory, 128, cudaMemcpyDeviceToDevice) == cudaSuccess);
  expect_silence([&] { launch(copy_ints, 1, 3, 0, nullptr, copy.data(), out.data()); });
  const std::string text = report_of([&](cudaStream_t s) { launch(copy_ints, 1, 4, 0, s, copy.data(), out.data()); });
  CHECK_THAT(text, ContainsSubstring("which nothing has written: byte 12 of 128 bytes"));

  static_cast<void>(simt::take_report());
  CHECK(cudaMemcpy(three, out.memory, 12, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(cudaMemcpy(three, out.data() + 1, 12, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress);
  CHECK_THAT(simt::take_report(), ContainsSubstring("a copy to the host of memory that nothing has written: byte 12"));
  simt::revive_devices();
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("fault: a library that reads memory that nothing has written") {
  const Ints a(4), b(4), c(4);
  REQUIRE(cudaMemset(b.memory, 0, 16) == cudaSuccess);
  cublasHandle_t handle = nullptr;
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  const std::string text = report_of([&](cudaStream_t s) {
    REQUIRE(cublasSetStream(handle, s) == CUBLAS_STATUS_SUCCESS);
    const float one = 1, zero = 0;
    static_cast<void>(cublasGemmStridedBatchedEx_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a.memory,
                                                    CUDA_R_32F, 2, 4, b.memory, CUDA_R_32F, 2, 4, &zero, c.memory,
                                                    CUDA_R_32F, 2, 4, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  });
  CHECK_THAT(text, ContainsSubstring("cublasGemmStridedBatchedEx reads memory that nothing has written: byte 0 of 16"));
  CHECK(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
}

TEST_CASE("fault: one buffer on two streams, with no event between") {
  const Zeros data(32), out(32);
  const StreamHandle other(0);
  std::string text = report_of([&](cudaStream_t s) {
    launch(fill_ints, 1, 32, 0, other.get(), data.data());
    launch(copy_ints, 1, 32, 0, s, data.data(), out.data());
  });
  INFO(text);
  CHECK_THAT(text, (ContainsSubstring("a read of 4 bytes, byte 0 of 128 bytes on device 0, which kernel ") &&
                    ContainsSubstring("fill_ints on stream ") && ContainsSubstring(here(kCopyInts))) ||
                       (ContainsSubstring("a write of 4 bytes, byte 0 of 128 bytes on device 0, which kernel ") &&
                        ContainsSubstring("copy_ints on stream ") && ContainsSubstring(here(kFillInts))));
  CHECK_THAT(text, ContainsSubstring("no event between"));

  text = report_of([&](cudaStream_t s) {
    launch(copy_ints, 1, 32, 0, s, data.data(), out.data());
    static_cast<void>(cudaMemsetAsync(data.memory, 0, 64, other.get()));
  });
  CHECK_THAT(text, (ContainsSubstring("cudaMemsetAsync writes byte 0 of 128 bytes on device 0, which kernel ") ||
                    ContainsSubstring("which cudaMemsetAsync on stream ")) &&
                       ContainsSubstring("no event between"));
}

TEST_CASE("what events, streams and the host order is no fault") {
  const Zeros data(32), out(32);
  const StreamHandle first(0), second(0), third(1);
  expect_silence([&] {
    for (int round = 0; round < 3; ++round) {
      launch(fill_ints, 1, 32, 0, first.get(), data.data());
      second.wait_for(first);
      launch(copy_ints, 1, 32, 0, second.get(), data.data(), out.data());
      third.wait_for(second);
      CHECK(cudaMemsetAsync(out.memory, 0, 64, third.get()) == cudaSuccess);
      third.synchronize();
    }
    // Readers need no order among themselves.
    launch(copy_ints, 1, 16, 0, first.get(), data.data(), out.data());
    launch(copy_ints, 1, 16, 0, second.get(), data.data(), out.data() + 16);
    first.wait_for(second);
    launch(fill_ints, 1, 32, 0, first.get(), data.data());
    first.synchronize();
    // A new stream knows what the host knows.
    const StreamHandle fresh(0);
    launch(fill_ints, 1, 32, 0, fresh.get(), data.data());
    fresh.synchronize();
  });
}

TEST_CASE("a host that reads device memory", "[.]") {
  if (!is_child()) return;
  const Zeros data(16);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  static_cast<void>(*static_cast<volatile int*>(data.data() + 2));
}
constexpr int kHostRead = __LINE__ - 2;

TEST_CASE("fault: host code that touches device memory") {
  const Child child = run_child("a host that reads device memory", {{"TANDEM_SIM_CHECK", "memory"}});
  CHECK_FALSE(child.passed());
  CHECK_THAT(child.output,
             ContainsSubstring("simulated GPU: host code touched byte 8 of 64 bytes on device 0, " + here(kHostRead)));
}

TEST_CASE("a program that gives nothing back", "[.]") {
  if (!is_child()) return;
  make_things();
  const simt::Permanent meant_to_stay;
  make_things();
}

TEST_CASE("a program that gives everything back", "[.]") {
  if (!is_child()) return;
  const Zeros data(8);
  const StreamHandle stream(0);
  launch(fill_ints, 1, 8, 0, stream.get(), data.data());
  stream.synchronize();
}

TEST_CASE("fault: what is still there at exit") {
  const Child child = run_child("a program that gives nothing back", {{"TANDEM_SIM_CHECK", "leaks"}});
  CHECK(WEXITSTATUS(child.status) == 1);
  CHECK_THAT(child.output, ContainsSubstring("All tests passed"));
  const auto check_leak = [&](const char* what, int line) {
    CHECK_THAT(child.output, ContainsSubstring(std::string("simulated GPU: leak: ") + what + ", made by make_things " +
                                               here(line) + "\n"));
  };
  check_leak("2 allocations of 200 bytes on device 0", kThings);
  check_leak("1 piece of pinned memory of 10 bytes", kThings + 2);
  check_leak("1 event on device 0", kThings + 3);
  check_leak("1 stream on device 0", kThings + 4);
  const Child clean = run_child("a program that gives everything back", {{"TANDEM_SIM_CHECK", "all"}});
  CHECK(clean.passed());
  CHECK_THAT(clean.output, !ContainsSubstring("leak"));
}
