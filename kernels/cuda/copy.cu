// Data movement: fill, copy with conversion and broadcasting, and ranges.
//
// copy: one read and one write per element; fill and arange: one write. Copies within a dtype move bits, so elements of
// one size share a kernel. Transpositions go by tiles through shared memory, so that both sides are accessed in rows.
// arange computes in double or int64, without fusing a * b + c, for the bits of the CPU.

#include "../math/convert.h"
#include "../math/integer.h"
#include "cuda_backend.h"
#include "elementwise.cuh"

namespace tandem::kernels::cuda {
namespace {

using Index = std::int64_t;

struct Same {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
};

template <class To>
struct Convert {
  template <class From>
  __device__ To operator()(From x) const {
    return math::convert<To>(x);
  }
};

constexpr int kTile = 32, kTileRows = kBlock / kTile;

/// The dimension of the plan in which the input is dense, if that is not the innermost one; else 0.
int transposed_dim(const ElementwisePlan<2>& plan) {
  if (plan.shape[0] < 8 || plan.strides[0][0] != 1 || plan.strides[0][1] == 0 || plan.strides[0][1] == 1) return 0;
  for (int d = 1; d < plan.ndim; ++d) {
    if (plan.strides[d][1] == 1 && plan.shape[d] >= 8) return d;
  }
  return 0;
}

struct TransposeArgs {
  ElementwisePlan<2> others;  ///< the plan without the two dimensions
  Index across, along;        ///< sizes: the output is dense along, the input across
  Index out_step, in_step;    ///< from row to row: the output's across, the input's along
  Index tiles_across, tiles_along;
};

template <class T>
__global__ void __launch_bounds__(kBlock) transpose(const TransposeArgs a, T* out, const T* in) {
  __shared__ T tile[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  const Index tiles = a.others.numel * a.tiles_across * a.tiles_along;
  for (Index t = blockIdx.x; t < tiles; t += gridDim.x) {
    const Index line = t / a.tiles_along, plane = line / a.tiles_across;
    const Index along = (t - line * a.tiles_along) * kTile, across = (line - plane * a.tiles_across) * kTile;
    const Offsets<2> at(a.others, plane);
    __syncthreads();  // the tile before may still be read
    for (int i = y; i < kTile; i += kTileRows) {
      if (along + i < a.along && across + x < a.across) {
        tile[i][x] = in[at.v[1] + (along + i) * a.in_step + across + x];
      }
    }
    __syncthreads();
    for (int i = y; i < kTile; i += kTileRows) {
      if (across + i < a.across && along + x < a.along) {
        out[at.v[0] + (across + i) * a.out_step + along + x] = tile[x][i];
      }
    }
  }
}

template <class T>
void launch_transpose(const Scope& scope, const ElementwisePlan<2>& plan, int across, T* out, const T* in) {
  TransposeArgs a{};
  a.across = plan.shape[across];
  a.along = plan.shape[0];
  a.out_step = plan.strides[across][0];
  a.in_step = plan.strides[0][1];
  a.tiles_across = (a.across + kTile - 1) / kTile;
  a.tiles_along = (a.along + kTile - 1) / kTile;
  a.others.numel = plan.numel / a.across / a.along;
  a.others.ndim = 1;
  a.others.shape[0] = 1;
  for (int d = 1; d < plan.ndim; ++d) {
    if (d == across) continue;
    const int to = a.others.ndim++;
    a.others.shape[to] = plan.shape[d];
    for (int k = 0; k < 2; ++k) a.others.strides[to][k] = plan.strides[d][k];
  }
  launch(transpose<T>, blocks_for(a.others.numel * a.tiles_across * a.tiles_along, 1), kBlock, 0, scope.stream(), a,
         out, in);
}

template <class T>
void copy_bits(const Scope& scope, const View& out, const View& in) {
  const ElementwisePlan<2> plan = plan_elementwise(out, in);
  if (plan.numel == 0) return;
  if (const int across = transposed_dim(plan)) {
    launch_transpose(scope, plan, across, out.as<T>(), in.as<const T>());
  } else {
    map<T>(scope, out, Same{}, Input<T>(in));
  }
}

/// Wide is double or int64.
template <class T, class Wide>
__global__ void __launch_bounds__(kBlock) count(T* out, Index n, Index stride, Wide first, Wide by) {
  for (Index i = global_index(); i < n; i += global_stride()) {
    out[i * stride] = math::convert<T>(math::add(first, math::mul(static_cast<Wide>(i), by)));
  }
}

}  // namespace

void CudaBackend::fill(Stream& stream, const View& out, const Scalar& value) const {
  Scope scope(stream, "fill");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    map<T>(scope, out, Same{}, Input<T>(value));
  });
}

void CudaBackend::copy(Stream& stream, const View& out, const View& in) const {
  Scope scope(stream, "copy");
  if (out.dtype == in.dtype) {
    switch (size_of(out.dtype)) {
      case 1: return copy_bits<std::uint8_t>(scope, out, in);
      case 4: return copy_bits<std::uint32_t>(scope, out, in);
      default: return copy_bits<std::uint64_t>(scope, out, in);
    }
  }
  visit_dtype(out.dtype, [&](auto to_tag) {
    visit_dtype(in.dtype, [&](auto from_tag) {
      using To = typename decltype(to_tag)::type;
      using From = typename decltype(from_tag)::type;
      if constexpr (!std::is_same_v<To, From>) map<To>(scope, out, Convert<To>{}, Input<From>(in));
    });
  });
}

void CudaBackend::arange(Stream& stream, const View& out, const Scalar& start, const Scalar& step) const {
  Scope scope(stream, "arange");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, Index>;
    launch(count<T, Wide>, blocks_for(out.shape[0]), kBlock, 0, scope.stream(), out.as<T>(), out.shape[0],
           out.strides[0], start.to<Wide>(), step.to<Wide>());
  });
}

}  // namespace tandem::kernels::cuda
