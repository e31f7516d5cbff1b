#pragma once
// What kernels over the rows of a matrix share: a warp or a block takes a row, and keeps a tile of it in registers.

#include <limits>

#include "../math/elementary.h"
#include "common.cuh"

/// Before a loop of a constant number of steps over an array that is to stay in registers.
#if defined(__CUDACC__)
#define TANDEM_UNROLL _Pragma("unroll")
#else
#define TANDEM_UNROLL
#endif
/// Before a loop that reads memory: so many reads are under way at once.
#if defined(__CUDACC__)
#define TANDEM_PRAGMA(text) _Pragma(#text)
#define TANDEM_UNROLL_BY(n) TANDEM_PRAGMA(unroll(n))
#else
#define TANDEM_UNROLL_BY(n)
#endif

namespace tandem::kernels::cuda {

/// The smallest power of two that is not below n, at most `most`.
inline int power_of_two_for(std::int64_t n, int most) {
  int power = 1;
  while (power < most && power < n) power *= 2;
  return power;
}

inline constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Sums are cut into pieces until there are about so many blocks, but not into pieces below so many elements.
inline constexpr std::int64_t kEnoughBlocks = 1024;
inline constexpr std::int64_t kPieceElements = 4096;

/// The pieces of each of `blocks` equal sums over `elements_each`.
inline std::int64_t pieces_for(std::int64_t blocks, std::int64_t elements_each) {
  const std::int64_t wanted = kEnoughBlocks / blocks, most = elements_each / kPieceElements;
  const std::int64_t pieces = wanted < most ? wanted : most;
  return pieces > 1 ? pieces : 1;
}

/// A power of two, as a shift, that is not below n.
inline int shift_for(std::int64_t n) {
  int shift = 0;
  while ((std::int64_t{1} << shift) < n) ++shift;
  return shift;
}

/// Rows are taken by groups of threads: a warp (then a block has several), or a whole block.
inline constexpr int kRowWarp = kWarp;
inline constexpr int kRowBlock = 512;

template <int Threads>
struct RowGroup {
  static constexpr int kThreads = Threads == kWarp ? kBlock : Threads;  ///< of a block
  static constexpr int kRows = kThreads / Threads;                      ///< of a block
  static constexpr int kResident = 1024 / kThreads / 2;                 ///< blocks of a processor: bounds registers
  static __device__ std::int64_t first() {
    return static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / Threads;
  }
  static __device__ std::int64_t step() { return static_cast<std::int64_t>(gridDim.x) * kRows; }
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % Threads; }
  /// The combination over the group, in a fixed order; every thread has it.
  template <class A, class Combine>
  static __device__ A reduce(A value, A start, Combine combine) {
    if constexpr (Threads == kWarp) {
      return __shfl_sync(kAllLanes, warp_reduce(value, combine), 0);
    } else {
      return block_reduce(value, start, combine);
    }
  }
  static __device__ double sum(double value) {
    return reduce(value, 0.0, [](double a, double b) { return a + b; });
  }
  template <class T>
  static __device__ T max(T value) {
    return reduce(value, -std::numeric_limits<T>::infinity(), [](T a, T b) { return b > a ? b : a; });
  }
};

/// A stretch of a row in the registers of a group. Lanes take packs in turn where rows may be read so, else elements.
template <class T, int Threads>
struct RowTile {
  static constexpr int kPer = kPackSize<T>;
  static constexpr int kPacks = Threads == kWarp && sizeof(T) == 4 ? 8 : 4;
  static constexpr int kSize = Threads * kPacks * kPer;

  Pack<T, kPer> v[kPacks];

  /// The place in the stretch of element j of pack k.
  static __device__ int column(bool packed, int k, int j) {
    const int lane = RowGroup<Threads>::lane();
    return packed ? (k * Threads + lane) * kPer + j : (k * kPer + j) * Threads + lane;
  }
  /// Pack k of `row`, whose elements from n on are `fill`.
  static __device__ Pack<T, kPer> load_pack(const T* row, int n, bool packed, int k, T fill) {
    Pack<T, kPer> p;
    if (packed && column(true, k, 0) < n) return *reinterpret_cast<const Pack<T, kPer>*>(row + column(true, k, 0));
    TANDEM_UNROLL
    for (int j = 0; j < kPer; ++j) {
      const int at = column(packed, k, j);
      p.v[j] = at < n ? row[at] : fill;
    }
    return p;
  }
  static __device__ void store_pack(T* row, int n, bool packed, int k, const Pack<T, kPer>& p) {
    if (packed) {
      if (column(true, k, 0) < n) *reinterpret_cast<Pack<T, kPer>*>(row + column(true, k, 0)) = p;
      return;
    }
    TANDEM_UNROLL
    for (int j = 0; j < kPer; ++j) {
      if (column(false, k, j) < n) row[column(false, k, j)] = p.v[j];
    }
  }
  __device__ void load(const T* row, int n, bool packed, T fill) {
    TANDEM_UNROLL
    for (int k = 0; k < kPacks; ++k) v[k] = load_pack(row, n, packed, k, fill);
  }
  __device__ void store(T* row, int n, bool packed) const {
    TANDEM_UNROLL
    for (int k = 0; k < kPacks; ++k) store_pack(row, n, packed, k, v[k]);
  }
  /// f(element) for all of them, those beyond the row included.
  template <class F>
  __device__ void each(F f) {
    TANDEM_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      TANDEM_UNROLL
      for (int j = 0; j < kPer; ++j) f(v[k].v[j]);
    }
  }
  /// f(element) for those before place n.
  template <class F>
  __device__ void each_of(int n, bool packed, F f) const {
    TANDEM_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      TANDEM_UNROLL
      for (int j = 0; j < kPer; ++j) {
        if (column(packed, k, j) < n) f(v[k].v[j]);
      }
    }
  }
  /// f(element of a, element of b) for all of them.
  template <class F>
  static __device__ void pairs(RowTile& a, const RowTile& b, F f) {
    TANDEM_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      TANDEM_UNROLL
      for (int j = 0; j < kPer; ++j) f(a.v[k].v[j], b.v[k].v[j]);
    }
  }
  /// NaN does not count.
  __device__ T max() const {
    T max = -std::numeric_limits<T>::infinity();
    TANDEM_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      TANDEM_UNROLL
      for (int j = 0; j < kPer; ++j) max = v[k].v[j] > max ? v[k].v[j] : max;
    }
    return max;
  }
  /// Replaces x by exp(x - max) and returns the sum.
  __device__ double exponentiate(T max) {
    T sum = 0;
    each([&](T& x) {
      x = math::exp(x - max);
      sum += x;
    });
    return static_cast<double>(sum);
  }

  /// The number of the row's elements in a tile that starts at `base`.
  static __device__ int count(std::int64_t c, std::int64_t base) {
    return static_cast<int>(c - base < kSize ? c - base : kSize);
  }
};

/// Whether the rows (.., c) of all the arrays may be read in packs; null arrays do not count.
template <class T, class... Pointers>
bool rows_packed(std::int64_t c, const Pointers*... p) {
  return c % kPackSize<T> == 0 && (is_aligned(p) && ...);
}

/// Launches `warps` where a row of c elements fits a warp's tile, else `blocks`: the kernel for groups of that size.
template <class T, class... P, class... A>
void launch_rows(void (*warps)(P...), void (*blocks)(P...), std::int64_t rows, std::int64_t c, cudaStream_t stream,
                 const A&... args) {
  if (c <= RowTile<T, kRowWarp>::kSize) {
    using Group = RowGroup<kRowWarp>;
    launch(warps, dim3(blocks_for(rows, Group::kRows)), dim3(Group::kThreads), 0, stream, args...);
  } else {
    using Group = RowGroup<kRowBlock>;
    launch(blocks, dim3(blocks_for(rows, Group::kRows)), dim3(Group::kThreads), 0, stream, args...);
  }
}

/// The maximum of some numbers and the sum of exp(x - max), which is 0 for the empty set and where all are -inf. The
/// sum is NaN where a number is NaN or +inf.
template <class T>
struct MaxSum {
  static constexpr T kLowest = -std::numeric_limits<T>::infinity();
  T max = kLowest;
  double sum = 0;

  /// The factor from sums about `from` to sums about `to`, which is not below.
  static __device__ double rescale(T from, T to) {
    return from == to ? 1.0 : static_cast<double>(math::exp(from - to));
  }
  /// Adds numbers whose maximum, NaN apart, is `top`; each(f) calls f(x) for every one.
  template <class Each>
  __device__ void add(T top, Each each) {
    const T larger = top > max ? top : max;
    const T shift = larger == kLowest ? T(0) : larger;
    T part = 0;
    each([&](T x) { part += math::exp(x - shift); });
    sum = sum * rescale(max, larger) + static_cast<double>(part);
    max = larger;
  }
  __device__ void add(const MaxSum& other) {
    const T larger = other.max > max ? other.max : max;
    sum = sum * rescale(max, larger) + other.sum * rescale(other.max, larger);
    max = larger;
  }
  /// What the sum is by its definition: NaN where all are -inf.
  __device__ double total() const { return max == kLowest ? std::numeric_limits<double>::quiet_NaN() : sum; }
};

/// The maximum and sum over a row of more elements than a tile.
template <class T, int Threads>
__device__ MaxSum<T> max_sum_of_row(const T* row, std::int64_t c, bool packed) {
  using Tile = RowTile<T, Threads>;
  using Group = RowGroup<Threads>;
  MaxSum<T> own;
  for (std::int64_t base = 0; base < c; base += Tile::kSize) {
    Tile tile;
    tile.load(row + base, Tile::count(c, base), packed, MaxSum<T>::kLowest);
    own.add(tile.max(), [&](auto f) { tile.each(f); });
  }
  MaxSum<T> all;
  all.max = Group::max(own.max);
  all.sum = Group::sum(own.sum * MaxSum<T>::rescale(own.max, all.max));
  return all;
}

}  // namespace tandem::kernels::cuda
