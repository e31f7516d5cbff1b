// CUDA's functions for devices, and which of them can use each other's memory.

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstring>

#include "options.h"
#include "runtime.h"

namespace tandem::simt {
namespace {

constexpr int kMultiprocessors = 8;
constexpr int kSharedPerBlock = 48 << 10, kSharedPerBlockOptin = 227 << 10;

std::array<std::array<std::atomic<bool>, kMaxDevices>, kMaxDevices> enabled{};

bool is_device(int device) { return device >= 0 && device < options().gpus; }

bool can_access(int device, int peer) {
  return options().peers[static_cast<std::size_t>(device)][static_cast<std::size_t>(peer)];
}

}  // namespace

bool peer_access(int device, int peer) {
  return enabled[static_cast<std::size_t>(device)][static_cast<std::size_t>(peer)];
}

}  // namespace tandem::simt

using namespace tandem::simt;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = options().gpus;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return result(cudaErrorInvalidDevice);
  make_current(device);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return result(waited(drain_device(current_device()), current_device())); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!properties) return result(cudaErrorInvalidValue);
  if (!is_device(device)) return result(cudaErrorInvalidDevice);
  cudaDeviceProp p{};
  std::strcpy(p.name, "Simulated GPU");
  p.totalGlobalMem = options().memory;
  p.sharedMemPerBlock = kSharedPerBlock;
  p.sharedMemPerBlockOptin = kSharedPerBlockOptin;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.major = options().major;
  p.minor = options().minor;
  p.multiProcessorCount = kMultiprocessors;
  *properties = p;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!value) return result(cudaErrorInvalidValue);
  if (!is_device(device)) return result(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = kSharedPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedPerBlockOptin; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = kMultiprocessors; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = options().major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = options().minor; break;
    default: return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) return result(cudaErrorInvalidDevice);
  *can = can_access(device, peer);
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  const int device = current_device();
  if (!is_device(peer) || peer == device) return result(cudaErrorInvalidDevice);
  if (flags != 0) return result(cudaErrorInvalidValue);
  if (!can_access(device, peer)) return result(cudaErrorPeerAccessUnsupported);
  std::atomic<bool>& on = enabled[static_cast<std::size_t>(device)][static_cast<std::size_t>(peer)];
  return on.exchange(true) ? result(cudaErrorPeerAccessAlreadyEnabled) : cudaSuccess;
}

}  // extern "C"
