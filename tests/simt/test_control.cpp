// Failures on demand, and the simulated machine that the environment describes.

#include <nccl.h>

#include <string>

#include "../../kernels/cuda/launch.h"
#include "../../kernels/error.h"
#include "../../kernels/simt/control.h"
#include "../catch.h"
#include "../child.h"
#include "simulated.h"

using namespace tandem;
using kernels::cuda::launch;
using simt::Call;

namespace {

__global__ void nothing() {}
__global__ void set_one(int* out) { *out = 1; }

/// Forgets the errors of a device that has failed on demand.
void revive() {
  static_cast<void>(cudaDeviceSynchronize());
  simt::revive_devices();
  static_cast<void>(cudaGetLastError());
}

}  // namespace

TEST_CASE("simt: the n-th allocation fails on demand") {
  void* memory[3] = {};
  simt::fail(Call::Malloc, 2, cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&memory[0], 64) == cudaSuccess);
  CHECK(cudaMalloc(&memory[1], 64) == cudaErrorMemoryAllocation);
  CHECK(memory[1] == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&memory[2], 64) == cudaSuccess);
  for (void* m : memory) CHECK(cudaFree(m) == cudaSuccess);

  simt::fail(Call::Pinned, 1, cudaErrorMemoryAllocation);
  CHECK(cudaHostAlloc(&memory[0], 64, cudaHostAllocDefault) == cudaErrorMemoryAllocation);
  CHECK(cudaHostAlloc(&memory[0], 64, cudaHostAllocDefault) == cudaSuccess);
  CHECK(cudaFreeHost(memory[0]) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("simt: the n-th copy fails on demand") {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 4) == cudaSuccess);
  int x = 1, y = 2;
  REQUIRE(cudaMemcpy(memory, &x, 4, cudaMemcpyHostToDevice) == cudaSuccess);
  simt::fail(Call::Copy, 1, cudaErrorInvalidValue);
  CHECK(cudaMemcpy(memory, &y, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(&y, memory, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(y == 1);
  simt::fail(Call::Copy, 1, cudaErrorECCUncorrectable);
  CHECK(cudaMemcpy(&y, memory, 4, cudaMemcpyDeviceToHost) == cudaErrorECCUncorrectable);
  CHECK(cudaMemset(memory, 0, 4) == cudaErrorECCUncorrectable);
  revive();
  CHECK(cudaFree(memory) == cudaSuccess);
}

TEST_CASE("simt: the n-th launch fails on demand, at once or when its turn comes") {
  const kernels::cuda::StreamHandle stream(0);
  simt::fail(Call::Launch, 2, cudaErrorLaunchOutOfResources);
  CHECK_NOTHROW(launch(nothing, 1, 1, 0, stream.get()));
  CHECK_THROWS_WITH(launch(nothing, 1, 1, 0, stream.get()), ContainsSubstring("cudaErrorLaunchOutOfResources"));
  CHECK_NOTHROW(launch(nothing, 1, 1, 0, stream.get()));
  CHECK(cudaStreamSynchronize(stream.get()) == cudaSuccess);

  simt::fail(Call::Launch, 1, cudaErrorLaunchFailure);
  CHECK_NOTHROW(launch(nothing, 1, 1, 0, stream.get()));
  CHECK(cudaStreamSynchronize(stream.get()) == cudaErrorLaunchFailure);
  revive();

  simt::fail(Call::Launch, 1, cudaErrorLaunchFailure);
  simt::clear_failures();
  CHECK_NOTHROW(launch(nothing, 1, 1, 0, stream.get()));
  CHECK(cudaStreamSynchronize(stream.get()) == cudaSuccess);
}

TEST_CASE("simt: the n-th collective fails on demand, and with it the communicator") {
  ncclComm_t comms[2] = {};
  REQUIRE(ncclCommInitAll(comms, 2, nullptr) == ncclSuccess);
  void* memory[2] = {};
  for (int r = 0; r < 2; ++r) {
    REQUIRE(cudaSetDevice(r) == cudaSuccess);
    REQUIRE(cudaMalloc(&memory[r], 16) == cudaSuccess);
    REQUIRE(cudaMemset(memory[r], 0, 16) == cudaSuccess);
  }
  cudaStream_t streams[2] = {};
  for (int r = 0; r < 2; ++r) {
    REQUIRE(cudaSetDevice(r) == cudaSuccess);
    REQUIRE(cudaStreamCreate(&streams[r]) == cudaSuccess);
  }
  simt::fail(Call::Collective, 2, ncclRemoteError);
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < 2; ++r) {
    CHECK(ncclAllReduce(memory[r], memory[r], 4, ncclFloat32, ncclSum, comms[r], streams[r]) == ncclSuccess);
  }
  CHECK(ncclGroupEnd() == ncclRemoteError);
  for (int r = 0; r < 2; ++r) {
    CHECK(cudaStreamSynchronize(streams[r]) == cudaSuccess);
    ncclResult_t state = ncclSuccess;
    CHECK(ncclCommGetAsyncError(comms[r], &state) == ncclSuccess);
    CHECK(state == ncclRemoteError);
    CHECK(ncclCommDestroy(comms[r]) == ncclSuccess);
    CHECK(cudaStreamDestroy(streams[r]) == cudaSuccess);
    CHECK(cudaFree(memory[r]) == cudaSuccess);
  }
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("simt: what a device says of itself") {
  cudaDeviceProp properties{};
  REQUIRE(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  CHECK(std::string(properties.name) == "Simulated GPU");
  CHECK(properties.warpSize == 32);
  std::size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  CHECK(properties.totalGlobalMem == total);
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess);
  CHECK(value == properties.multiProcessorCount);
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlock, 0) == cudaSuccess);
  CHECK(static_cast<std::size_t>(value) == properties.sharedMemPerBlock);
  CHECK(cudaGetDeviceProperties(&properties, 99) == cudaErrorInvalidDevice);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("simt: a described machine", "[.]") {
  if (!is_child()) return;
  int n = 0, major = 0, minor = 0, near = 0, far = 0;
  REQUIRE(cudaGetDeviceCount(&n) == cudaSuccess);
  CHECK(n == 3);
  CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 2) == cudaSuccess);
  CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 2) == cudaSuccess);
  CHECK(major == 8);
  CHECK(minor == 6);
  CHECK(cudaDeviceCanAccessPeer(&near, 2, 1) == cudaSuccess);
  CHECK(cudaDeviceCanAccessPeer(&far, 0, 1) == cudaSuccess);
  CHECK(near == 1);
  CHECK(far == 0);
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessUnsupported);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 5 << 20) == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&memory, 64) == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&memory, 64) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
  const kernels::cuda::StreamHandle stream(0);
  launch(nothing, 1, 1, 0, stream.get());
  CHECK(cudaStreamSynchronize(stream.get()) == cudaErrorIllegalAddress);
}

TEST_CASE("simt: the environment describes the machine") {
  const Child described = run_child("simt: a described machine", {{"TANDEM_SIM_GPUS", "3"},
                                                                  {"TANDEM_SIM_CAPABILITY", "8.6"},
                                                                  {"TANDEM_SIM_PEERS", "0-2,1-2"},
                                                                  {"TANDEM_SIM_MEMORY", "4M"},
                                                                  {"TANDEM_SIM_FAIL", "malloc:2=2,launch:1=700"}});
  CHECK(described.passed());
  CAPTURE(described.output);
  const std::pair<const char*, const char*> wrong[] = {{"TANDEM_SIM_CAPABILITY", "nine"},
                                                       {"TANDEM_SIM_PEERS", "0-1,2"},
                                                       {"TANDEM_SIM_FAIL", "malloc:0=2"},
                                                       {"TANDEM_SIM_FAIL", "memory:1=2"}};
  for (const auto& [name, value] : wrong) {
    const Child refused = run_child("simt: a described machine", {{name, value}});
    CHECK(WEXITSTATUS(refused.status) == 2);
    CHECK_THAT(refused.output, ContainsSubstring(std::string(name) + "=" + value + ": wanted"));
  }
}

TEST_CASE("simt: a kernel that touches another device", "[.]") {
  if (!is_child()) return;
  const Ints near(8), far(8, 1);
  const std::string text = report_of([&](cudaStream_t s) { launch(set_one, 1, 1, 0, s, far.data()); });
  CHECK_THAT(text, ContainsSubstring(
                       "a kernel of device 0 touched, without peer access, byte 0 of 32 bytes on device 1, at ") &&
                       ContainsSubstring("in kernel set_one, block (0, 0, 0), thread (0, 0, 0)"));
  // With peer access, and on its own device, a kernel opens what it touches.
  REQUIRE(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
  launch(set_one, 1, 1, 0, nullptr, far.data());
  launch(set_one, 1, 1, 0, nullptr, near.data());
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(far.host()[0] == 1);
}

TEST_CASE("simt: the check of memory finds kernels without peer access") {
  const Child child = run_child("simt: a kernel that touches another device", {{"TANDEM_SIM_CHECK", "memory"}});
  CAPTURE(child.output);
  CHECK(child.passed());
}
