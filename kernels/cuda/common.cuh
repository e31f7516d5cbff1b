#pragma once
// What the kernels share: launch shapes, sums over warps and blocks, vector access, and the report of bad indices.

#include <cuda_runtime.h>

#include <cstdint>

#include "../dtype.h"
#include "launch.h"
#include "queue.h"

namespace tandem::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kBlock = 256;
/// Grid-stride kernels launch at most this many blocks: enough to fill any GPU several times over.
inline constexpr std::int64_t kMaxBlocks = 4096;

/// Blocks of `per_block` elements for a grid-stride loop over n.
inline unsigned blocks_for(std::int64_t n, std::int64_t per_block = kBlock) {
  const std::int64_t blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

__device__ inline std::int64_t global_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t global_stride() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

/// N elements that are read and written as one access of N * sizeof(T) bytes.
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T v[N];
};
template <class T>
inline constexpr int kPackSize = 16 / static_cast<int>(sizeof(T));

inline bool is_aligned(const void* p, std::size_t bytes = 16) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

/// The combination of all lanes' values, in a fixed order; lane 0 has it. All lanes of the warp must call.
template <class A, class Combine>
__device__ inline A warp_reduce(A value, Combine combine) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_down_sync(kAllLanes, value, offset));
  }
  return value;
}

/// The combination of all threads' values, in a fixed order; every thread has it. `blockDim.x` is a multiple of 32, at
/// most 1024, one-dimensional; all threads must call. A is trivially copyable and of a size that shuffles take.
template <class A, class Combine>
__device__ inline A block_reduce(A value, A start, Combine combine) {
  __shared__ A partial[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  value = warp_reduce(value, combine);
  __syncthreads();  // `partial` may still be read from an earlier call
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = warp_reduce(lane < warps ? partial[lane] : start, combine);
    if (lane == 0) partial[0] = value;
  }
  __syncthreads();
  return partial[0];
}

/// Whether `index` is in range; if not, reports it.
__device__ inline bool check_index(const FaultSink& sink, std::int64_t index, std::int64_t limit,
                                   std::int64_t position) {
  if (index >= 0 && index < limit) return true;
  if (atomicCAS(sink.lock, 0u, 1u) == 0u) {
    sink.report->fault.position = position;
    sink.report->fault.value = index;
    sink.report->fault.limit = limit;
    sink.report->op = sink.op;
    __threadfence_system();
    sink.report->fault.set = true;
  }
  return false;
}

}  // namespace tandem::kernels::cuda
