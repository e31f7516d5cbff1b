#pragma once
// Sorting of keys with their places, for sums that must go through their addends in order.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cuda {

using SortKey = std::uint32_t;

/// Ascending keys, and where in the unsorted array each was; equal keys are in the order of their places.
struct SortedKeys {
  const SortKey* keys;
  const SortKey* places;
};

/// Bytes of scratch memory that sort_keys needs for n < 2^32 keys.
std::size_t sort_scratch(std::int64_t n);

/// Sorts the n keys that the first n words of `scratch` hold, none greater than `largest`. The result lies in
/// `scratch`.
SortedKeys sort_keys(cudaStream_t stream, void* scratch, std::int64_t n, SortKey largest);

}  // namespace tandem::kernels::cuda
