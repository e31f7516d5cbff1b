// Stable sorting of 32-bit keys with their places.
//
// Few keys: every thread counts the keys that go before its own, n^2 comparisons in one launch.
// Many: radix sort from the least significant digit, 8 bits a pass, as many passes as the largest key has bytes. A pass
// counts the digits of every tile, sums the counts of each digit over the tiles before, and puts every key at: keys of
// smaller digits, equal digits of tiles before, of warps before, of rounds before in its warp, of lanes before. It
// reads the keys twice and the places once, and writes both: 20 bytes per key. Only integers are added, so the order of
// atomic additions does not matter.

#include "sort.h"

#include <utility>

#include "common.cuh"

namespace tandem::kernels::cuda {
namespace {

using Index = std::int64_t;

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kWarps = kBlock / kWarp;
constexpr int kRounds = 8;
constexpr Index kTile = kBlock * kRounds;
constexpr Index kFewKeys = 4096;
static_assert(kDigits == kBlock, "one thread per digit");

/// The sum of the values of the threads before this one. All kBlock threads must call.
__device__ unsigned sum_before(unsigned value) {
  __shared__ unsigned sums[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  unsigned sum = value;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const unsigned before = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += before;
  }
  __syncthreads();  // `sums` may still be read from an earlier call
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  sum -= value;
  for (int w = 0; w < warp; ++w) sum += sums[w];
  return sum;
}

__global__ void rank_keys(const SortKey* keys, Index n, SortKey* sorted_keys, SortKey* places) {
  __shared__ SortKey tile[kBlock];
  const Index i = global_index();
  const SortKey key = i < n ? keys[i] : 0;
  Index rank = 0;
  for (Index start = 0; start < n; start += kBlock) {
    const Index size = n - start < kBlock ? n - start : kBlock;
    __syncthreads();
    if (threadIdx.x < size) tile[threadIdx.x] = keys[start + threadIdx.x];
    __syncthreads();
    for (Index j = 0; j < size; ++j) rank += tile[j] < key || (tile[j] == key && start + j < i);
  }
  if (i >= n) return;
  sorted_keys[rank] = key;
  places[rank] = static_cast<SortKey>(i);
}

__global__ void count_digits(const SortKey* keys, Index n, int shift, unsigned* counts) {
  __shared__ unsigned count[kDigits];
  count[threadIdx.x] = 0;
  __syncthreads();
  for (int r = 0; r < kRounds; ++r) {
    const Index i = blockIdx.x * kTile + r * kBlock + threadIdx.x;
    if (i < n) atomicAdd(&count[keys[i] >> shift & (kDigits - 1)], 1u);
  }
  __syncthreads();
  counts[threadIdx.x * static_cast<Index>(gridDim.x) + blockIdx.x] = count[threadIdx.x];
}

/// One block per digit: its counts become sums over the tiles before, its total goes into `totals`.
__global__ void sum_counts(unsigned* counts, Index tiles, unsigned* totals) {
  __shared__ unsigned chunk_total;
  unsigned* row = counts + blockIdx.x * tiles;
  unsigned total = 0;
  for (Index start = 0; start < tiles; start += kBlock) {
    const Index i = start + threadIdx.x;
    const unsigned count = i < tiles ? row[i] : 0, before = sum_before(count);
    if (i < tiles) row[i] = total + before;
    if (threadIdx.x == kBlock - 1) chunk_total = before + count;
    __syncthreads();
    total += chunk_total;
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

/// `places` is null in the first pass, where every key is in its place.
__global__ void move_keys(const SortKey* keys, const SortKey* places, Index n, int shift, const unsigned* counts,
                          const unsigned* totals, SortKey* moved_keys, SortKey* moved_places) {
  __shared__ unsigned slots[kWarps][kDigits];  // at first: how many of a digit the warp has met
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int d = lane; d < kDigits; d += kWarp) slots[warp][d] = 0;
  __syncwarp();

  const Index first = blockIdx.x * kTile + warp * kWarp * kRounds + lane;
  SortKey key[kRounds];
  unsigned rank[kRounds];
  for (int r = 0; r < kRounds; ++r) {
    const bool exists = first + r * kWarp < n;
    key[r] = exists ? keys[first + r * kWarp] : 0;
    const unsigned digit = key[r] >> shift & (kDigits - 1);
    const unsigned existing = __ballot_sync(kAllLanes, exists);
    unsigned same = exists ? existing : ~existing;
    for (int bit = 0; bit < kDigitBits; ++bit) {
      const bool one = (digit >> bit & 1) != 0;
      const unsigned ones = __ballot_sync(kAllLanes, one);
      same &= one ? ones : ~ones;
    }
    const unsigned lanes_before = same & ((1u << lane) - 1);
    const unsigned met = slots[warp][digit];
    rank[r] = met + static_cast<unsigned>(__popc(lanes_before));
    __syncwarp();
    if (exists && lanes_before == 0) slots[warp][digit] = met + static_cast<unsigned>(__popc(same));
    __syncwarp();
  }
  __syncthreads();

  // Now: where the warp's first key of a digit goes.
  const int digit = threadIdx.x;
  unsigned slot = sum_before(totals[digit]) + counts[digit * static_cast<Index>(gridDim.x) + blockIdx.x];
  for (int w = 0; w < kWarps; ++w) {
    const unsigned met = slots[w][digit];
    slots[w][digit] = slot;
    slot += met;
  }
  __syncthreads();
  for (int r = 0; r < kRounds; ++r) {
    const Index i = first + r * kWarp;
    if (i >= n) continue;
    const unsigned to = slots[warp][key[r] >> shift & (kDigits - 1)] + rank[r];
    moved_keys[to] = key[r];
    moved_places[to] = places == nullptr ? static_cast<SortKey>(i) : places[i];
  }
}

Index tiles_of(Index n) { return (n + kTile - 1) / kTile; }

}  // namespace

std::size_t sort_scratch(std::int64_t n) {
  const Index words = n <= kFewKeys ? 3 * n : 4 * n + kDigits * (tiles_of(n) + 1);
  return static_cast<std::size_t>(words) * sizeof(SortKey);
}

SortedKeys sort_keys(cudaStream_t stream, void* scratch, std::int64_t n, SortKey largest) {
  SortKey* keys = static_cast<SortKey*>(scratch);
  SortKey* moved_keys = keys + n;
  SortKey* moved_places = moved_keys + n;
  if (n <= kFewKeys) {
    launch(rank_keys, blocks_for(n), kBlock, 0, stream, keys, n, moved_keys, moved_places);
    return {moved_keys, moved_places};
  }
  SortKey* places = moved_places + n;
  unsigned* counts = places + n;
  const Index tiles = tiles_of(n);
  unsigned* totals = counts + kDigits * tiles;
  const unsigned blocks = static_cast<unsigned>(tiles);
  for (int shift = 0; shift == 0 || (shift < 32 && largest >> shift != 0); shift += kDigitBits) {
    launch(count_digits, blocks, kBlock, 0, stream, keys, n, shift, counts);
    launch(sum_counts, kDigits, kBlock, 0, stream, counts, tiles, totals);
    launch(move_keys, blocks, kBlock, 0, stream, keys, shift == 0 ? nullptr : places, n, shift, counts, totals,
           moved_keys, moved_places);
    std::swap(keys, moved_keys);
    std::swap(places, moved_places);
  }
  return {keys, places};
}

}  // namespace tandem::kernels::cuda
