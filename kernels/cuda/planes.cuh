#pragma once
// Kernels over stacks of planes, as the images of pooling and convolution: which thread has which elements of which
// planes.

#include "common.cuh"

namespace tandem::kernels::cuda {

/// The launch for kernels that use for_each_in_planes over `planes` planes of `size` elements.
struct PlaneLaunch {
  PlaneLaunch(std::int64_t planes, std::int64_t size) {
    if (planes == 0 || size == 0) return;
    unsigned across = 8;
    while (across < kBlock && across < size) across *= 2;
    block = dim3(across, kBlock / across);
    const auto at_most = [](std::int64_t n, std::int64_t most) { return static_cast<unsigned>(n < most ? n : most); };
    grid = dim3(at_most((size + across - 1) / across, kMaxBlocks), at_most((planes + block.y - 1) / block.y, 65535));
  }
  dim3 grid{0, 1, 1}, block{1, 1, 1};
};

/// Calls f(plane, i) for every element i < size of every plane, in some thread of the grid. No barriers in f.
template <class F>
__device__ inline void for_each_in_planes(std::int64_t planes, std::int64_t size, F f) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
  for (std::int64_t plane = first; plane < planes; plane += static_cast<std::int64_t>(gridDim.y) * blockDim.y) {
    for (std::int64_t i = global_index(); i < size; i += global_stride()) f(plane, i);
  }
}

}  // namespace tandem::kernels::cuda
