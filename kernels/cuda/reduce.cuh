#pragma once
// The kernels of reduce.cu: how a strided array is reduced over some of its dimensions.
//
// A policy P says what is accumulated:
//   In, Sum, Out                      the elements, the accumulator (trivially copyable), pointers to the results
//   kOutputs, kUnroll                 how many arrays of results there are, and of reads at once
//   start(), add(sum, x, place), combine(a, b), write(out, offsets, sum)
// `place` counts an element's position in the reduced dimension, where there is but one; offsets[k] belongs to output
// k - 1, as in a ReducePlan.

#include "../reduce_plan.h"
#include "rows.cuh"

namespace tandem::kernels::cuda {

/// Units have at most so many elements: threads count them in int.
inline constexpr std::int64_t kLongest = std::int64_t{1} << 30;

/// Adds to offsets[k] where element i of the plan's dimensions from `first` on lies in operand k.
template <int N>
__device__ void add_offsets(const ElementwisePlan<N>& plan, int first, std::int64_t i, std::int64_t (&offsets)[N]) {
  for (int d = first; d < plan.ndim; ++d) {
    std::int64_t index = i;
    if (d < plan.ndim - 1) {
      i /= plan.shape[d];
      index -= i * plan.shape[d];
    }
    for (int k = 0; k < N; ++k) offsets[k] += index * plan.strides[d][k];
  }
}

template <class P>
struct Reduction {
  using Kept = ElementwisePlan<1 + P::kOutputs>;

  const typename P::In* in;
  typename P::Out out;
  Kept kept;
  ElementwisePlan<1> reduced;
  typename P::Sum* partials;  ///< (results, pieces), or null where there is one piece

  /// Called with the sum of piece blockIdx.y.
  __device__ void finish(std::int64_t result, const std::int64_t (&offsets)[1 + P::kOutputs],
                         const typename P::Sum& sum) const {
    if (partials == nullptr) {
      P::write(out, offsets, sum);
    } else {
      partials[result * gridDim.y + blockIdx.y] = sum;
    }
  }
};

/// How the threads of a block share the results and the terms of a reduction by lines.
struct LineShape {
  int group;             ///< threads that share a result: a power of two up to 32, or the block
  int lanes;             ///< of these, along dimension 0; the others take further units
  bool packed;           ///< dimension 0 may be read in packs
  std::int64_t stretch;  ///< dimension 0 is cut into units of so many elements, the last ones perhaps empty,
  int cuts;              ///< which makes 2^cuts of it
  std::int64_t units, units_per_piece;
};

template <class P>
__device__ typename P::Sum reduce_group(typename P::Sum sum, int group) {
  for (int offset = (group < kWarp ? group : kWarp) / 2; offset > 0; offset /= 2) {
    sum = P::combine(sum, P::shuffle_down(sum, offset));
  }
  if (group > kWarp) {
    __shared__ typename P::Sum parts[kBlock / kWarp];
    __syncthreads();  // `parts` may still be read from an earlier call
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 1; warp < kBlock / kWarp; ++warp) sum = P::combine(sum, parts[warp]);
    }
  }
  return sum;
}

template <class P>
__global__ void __launch_bounds__(kBlock, 4) reduce_lines(const Reduction<P> r, const LineShape s) {
  using In = typename P::In;
  constexpr int per = kPackSize<In>;
  const int member = static_cast<int>(threadIdx.x) % s.group, lane = member % s.lanes;
  const int per_block = kBlock / s.group, rows = s.group / s.lanes;
  const std::int64_t begin = blockIdx.y * s.units_per_piece;
  const std::int64_t end = s.units - begin < s.units_per_piece ? s.units : begin + s.units_per_piece;
  const std::int64_t step = r.reduced.strides[0][0];
  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * per_block; base < r.kept.numel;
       base += static_cast<std::int64_t>(gridDim.x) * per_block) {
    const std::int64_t result = base + threadIdx.x / s.group;
    std::int64_t offsets[1 + P::kOutputs] = {};
    typename P::Sum sum = P::start();
    if (result < r.kept.numel) {
      add_offsets(r.kept, 0, result, offsets);
      for (std::int64_t unit = begin + member / s.lanes; unit < end; unit += rows) {
        std::int64_t line[1] = {offsets[0]};
        const std::int64_t row = unit >> s.cuts, first = (unit - (row << s.cuts)) * s.stretch;
        add_offsets(r.reduced, 1, row, line);
        const In* in = r.in + line[0] + first * step;
        const std::int64_t left = r.reduced.shape[0] - first;
        const int n = static_cast<int>(left < s.stretch ? left : s.stretch), packs = s.packed && n > 0 ? n / per : 0;
        TANDEM_UNROLL_BY(P::kUnroll)
        for (int i = lane; i < packs; i += s.lanes) {
          const auto pack = reinterpret_cast<const Pack<In, per>*>(in)[i];
          TANDEM_UNROLL
          for (int j = 0; j < per; ++j) P::add(sum, pack.v[j], first + i * per + j);
        }
        TANDEM_UNROLL_BY(P::kUnroll)
        for (int i = packs * per + lane; i < n; i += s.lanes) P::add(sum, in[i * step], first + i);
      }
    }
    sum = reduce_group<P>(sum, s.group);
    if (member == 0 && result < r.kept.numel) r.finish(result, offsets, sum);
  }
}

/// How a block shares a reduction by columns: `width` threads take neighbouring columns of dimension 0, the others
/// further rows.
struct ColumnShape {
  int width;            ///< a power of two up to 32
  std::int64_t strips;  ///< of `width` columns in dimension 0
  std::int64_t rows_per_piece;
};

template <class P>
__global__ void __launch_bounds__(kBlock, 3) reduce_columns(const Reduction<P> r, const ColumnShape s) {
  __shared__ typename P::Sum sums[kBlock];
  const int t = static_cast<int>(threadIdx.x), x = t % s.width, y = t / s.width, height = kBlock / s.width;
  const std::int64_t columns = r.kept.shape[0], all_strips = r.kept.numel / columns * s.strips;
  const std::int64_t begin = blockIdx.y * s.rows_per_piece, rows = r.reduced.numel;
  const std::int64_t end = rows - begin < s.rows_per_piece ? rows : begin + s.rows_per_piece;
  for (std::int64_t strip = blockIdx.x; strip < all_strips; strip += gridDim.x) {
    const std::int64_t outer = strip / s.strips, column = (strip - outer * s.strips) * s.width + x;
    const std::int64_t result = outer * columns + column;
    std::int64_t offsets[1 + P::kOutputs] = {};
    typename P::Sum sum = P::start();
    if (column < columns) {
      add_offsets(r.kept, 0, result, offsets);
      const typename P::In* in = r.in + offsets[0];
      if (r.reduced.ndim == 1) {
        const std::int64_t step = r.reduced.strides[0][0];
        TANDEM_UNROLL_BY(P::kUnroll)
        for (std::int64_t row = begin + y; row < end; row += height) P::add(sum, in[row * step], row);
      } else {
        for (std::int64_t row = begin + y; row < end; row += height) {
          std::int64_t at[1] = {};
          add_offsets(r.reduced, 0, row, at);
          P::add(sum, in[at[0]], row);
        }
      }
    }
    sums[t] = sum;
    __syncthreads();
    for (int half = height / 2; half > 0; half /= 2) {
      if (y < half) sums[t] = P::combine(sums[t], sums[t + half * s.width]);
      __syncthreads();
    }
    if (y == 0 && column < columns) r.finish(result, offsets, sums[t]);
  }
}

/// Combines the pieces of every result, a warp for each.
template <class P>
__global__ void __launch_bounds__(kBlock, 4) reduce_pieces(const Reduction<P> r, const std::int64_t pieces) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t result = global_index() / kWarp; result < r.kept.numel; result += global_stride() / kWarp) {
    typename P::Sum sum = P::start();
    for (std::int64_t i = lane; i < pieces; i += kWarp) sum = P::combine(sum, r.partials[result * pieces + i]);
    sum = reduce_group<P>(sum, kWarp);
    if (lane == 0) {
      std::int64_t offsets[1 + P::kOutputs] = {};
      add_offsets(r.kept, 0, result, offsets);
      P::write(r.out, offsets, sum);
    }
  }
}

/// Whether all lines along dimension 0 of `reduced` may be read in packs.
template <class P>
bool lines_packed(const Reduction<P>& r) {
  constexpr int per = kPackSize<typename P::In>;
  bool packed = r.reduced.strides[0][0] == 1 && is_aligned(r.in);
  for (int d = 0; d < r.kept.ndim; ++d) packed &= r.kept.strides[d][0] % per == 0;
  for (int d = 1; d < r.reduced.ndim; ++d) packed &= r.reduced.strides[d][0] % per == 0;
  return packed;
}

template <class P>
LineShape shape_lines(const Reduction<P>& r, std::int64_t& pieces) {
  LineShape s;
  constexpr int per = kPackSize<typename P::In>;
  const std::int64_t terms = r.reduced.numel, length = r.reduced.shape[0], results = r.kept.numel;
  const std::int64_t rows = terms == 0 ? 0 : terms / length;
  s.packed = lines_packed(r);
  pieces = pieces_for(results, terms);
  s.cuts = shift_for(rows > 0 ? ceil_div(pieces, rows) : 1);
  while (length >> s.cuts > kLongest) ++s.cuts;
  s.stretch = s.cuts == 0 ? length : ceil_div(ceil_div(length, std::int64_t{1} << s.cuts), per) * per;
  s.units = rows << s.cuts;
  s.units_per_piece = s.units == 0 ? 1 : ceil_div(s.units, pieces);
  pieces = s.units == 0 ? 1 : ceil_div(s.units, s.units_per_piece);
  const std::int64_t loads_each = ceil_div(s.stretch, s.packed ? per : 1), loads = loads_each * s.units;
  const bool block = pieces > 1 || loads >= 4 * kBlock || (loads >= kBlock && results < kEnoughBlocks / 2);
  s.group = block ? kBlock : power_of_two_for(ceil_div(loads, 4), kWarp);
  s.lanes = power_of_two_for(loads_each, s.group);
  return s;
}

template <class P>
void reduce_with(Scope& scope, const ReducePlan<P::kOutputs>& plan, const typename P::In* in,
                 const typename P::Out& out) {
  if (plan.kept.numel == 0) return;
  Reduction<P> r{in, out, plan.kept, plan.reduced, nullptr};
  const auto partials = [&](std::int64_t pieces) {
    const std::int64_t bytes = r.kept.numel * pieces * static_cast<std::int64_t>(sizeof(typename P::Sum));
    if (pieces > 1) r.partials = static_cast<typename P::Sum*>(scope.scratch(static_cast<std::size_t>(bytes)));
  };
  std::int64_t pieces = 1;
  if (plan.by_columns()) {
    const std::int64_t columns = r.kept.shape[0], rows = r.reduced.numel;
    ColumnShape s;
    s.width = power_of_two_for(columns, kWarp);
    s.strips = ceil_div(columns, s.width);
    const std::int64_t strips = r.kept.numel / columns * s.strips;
    pieces = pieces_for(strips, rows * s.width);
    s.rows_per_piece = rows == 0 ? 1 : ceil_div(rows, pieces);
    pieces = rows == 0 ? 1 : ceil_div(rows, s.rows_per_piece);
    partials(pieces);
    launch(reduce_columns<P>, dim3(blocks_for(strips, 1), static_cast<unsigned>(pieces)), dim3(kBlock), 0,
           scope.stream(), r, s);
  } else {
    const LineShape s = shape_lines(r, pieces);
    partials(pieces);
    launch(reduce_lines<P>, dim3(blocks_for(r.kept.numel, kBlock / s.group), static_cast<unsigned>(pieces)),
           dim3(kBlock), 0, scope.stream(), r, s);
  }
  if (pieces > 1) {
    launch(reduce_pieces<P>, dim3(blocks_for(r.kept.numel, kBlock / kWarp)), dim3(kBlock), 0, scope.stream(), r,
           pieces);
  }
}

}  // namespace tandem::kernels::cuda
