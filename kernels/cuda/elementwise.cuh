#pragma once
// out[i] = f(inputs[i]...) for operands of any strides that broadcast to `out`.
//
// Where everything is contiguous and aligned, a thread reads and writes 16 bytes of the widest operand at a time.
// Otherwise each element's place is computed by division along the plan's dimensions.

#include <cstdint>
#include <utility>

#include "../elementwise_plan.h"
#include "common.cuh"

namespace tandem::kernels::cuda {

/// An input: an array, or one value for all elements.
template <class T>
struct Source {
  using type = T;
  const T* data = nullptr;
  T value{};
  bool repeats = false;  ///< one element of memory for all; packed loops only

  __device__ T at(std::int64_t i) const { return data ? data[i] : value; }
  template <int N>
  __device__ Pack<T, N> pack(std::int64_t i) const {
    if (data && !repeats) return reinterpret_cast<const Pack<T, N>*>(data)[i];
    const T same = data ? data[0] : value;
    Pack<T, N> p;
    for (T& v : p.v) v = same;
    return p;
  }
  __device__ T flat(std::int64_t i) const { return repeats ? data[0] : at(i); }
};

template <class T>
Source<T> source(const View& v) {
  return {v.as<const T>(), T{}, false};
}
template <class T>
Source<T> source(const Operand& o) {
  if (o.is_scalar) return {nullptr, o.scalar.to<T>(), false};
  return source<T>(o.view);
}

/// What an operand looks like to the plan: scalars have no dimensions.
inline View plan_view(const View& v) { return v; }
inline View plan_view(const Operand& o) { return o.is_scalar ? View{} : o.view; }

namespace detail {

template <int N, class F, class Out, class... In>
__global__ void packed(std::int64_t n, F f, Out* out, Source<In>... in) {
  const std::int64_t packs = n / N;
  for (std::int64_t p = global_index(); p < packs; p += global_stride()) {
    Pack<Out, N> result;
    const auto apply = [&](const Pack<In, N>&... x) {
      for (int j = 0; j < N; ++j) result.v[j] = f(x.v[j]...);
    };
    apply(in.template pack<N>(p)...);
    reinterpret_cast<Pack<Out, N>*>(out)[p] = result;
  }
  const std::int64_t tail = packs * N + global_index();
  if (tail < n) out[tail] = f(in.flat(tail)...);
}

template <class F, class Out, int Operands, std::size_t... K, class... In>
__device__ void apply_at(const ElementwisePlan<Operands>& plan, std::int64_t i, F f, Out* out,
                         std::index_sequence<K...>, const Source<In>&... in) {
  std::int64_t offsets[Operands] = {};
  for (int d = 0; d < plan.ndim; ++d) {
    const std::int64_t index = d == plan.ndim - 1 ? i : i % plan.shape[d];
    if (d < plan.ndim - 1) i /= plan.shape[d];
    for (int k = 0; k < Operands; ++k) offsets[k] += index * plan.strides[d][k];
  }
  out[offsets[0]] = f(in.at(offsets[1 + K])...);
}

template <class F, class Out, int Operands, class... In>
__global__ void strided(ElementwisePlan<Operands> plan, F f, Out* out, Source<In>... in) {
  for (std::int64_t i = global_index(); i < plan.numel; i += global_stride()) {
    apply_at(plan, i, f, out, std::index_sequence_for<In...>{}, in...);
  }
}

}  // namespace detail

/// Launches `f` over the plan's elements. F is a functor of the device; `in` are the plan's inputs in order.
template <class Out, class F, int Operands, class... In>
void launch_elementwise(cudaStream_t stream, const ElementwisePlan<Operands>& plan, F f, Out* out, Source<In>... in) {
  static_assert(Operands == 1 + sizeof...(In));
  if (plan.numel == 0) return;
  constexpr std::size_t widest = [] {
    std::size_t size = sizeof(Out);
    ((size = sizeof(In) > size ? sizeof(In) : size), ...);
    return size;
  }();
  constexpr int n = static_cast<int>(16 / widest);
  bool flat = plan.ndim == 1 && plan.strides[0][0] == 1 && is_aligned(out, n * sizeof(Out));
  int k = 0;
  const auto look = [&](auto& s) {
    const std::int64_t stride = plan.strides[0][++k];
    s.repeats = s.data != nullptr && stride == 0;
    flat = flat && (stride == 0 || (stride == 1 && is_aligned(s.data, n * sizeof(*s.data))));
  };
  (look(in), ...);
  if (flat) {
    launch(detail::packed<n, F, Out, In...>, blocks_for(plan.numel, std::int64_t{kBlock} * n), kBlock, 0, stream,
           plan.numel, f, out, in...);
  } else {
    ((in.repeats = false), ...);
    launch(detail::strided<F, Out, Operands, In...>, blocks_for(plan.numel), kBlock, 0, stream, plan, f, out, in...);
  }
}

}  // namespace tandem::kernels::cuda
