#pragma once
// Elementwise kernels: one result per position, from inputs that broadcast to the output's shape.
//
// Positions are walked as the plan says, by a division for each of its dimensions but the outermost. Where all operands
// are dense or repeated along the innermost one, and aligned, a thread takes as many neighbours as make 16 bytes of the
// widest type, so that the divisions are shared and every access is wide.

#include <utility>

#include "../elementwise_plan.h"
#include "common.cuh"

namespace tandem::kernels::cuda {

/// An input for the host: a view, or a number where the view has no data.
template <class T>
struct Input {
  Input(const View& v) : view(v) {}                       // NOLINT(google-explicit-constructor)
  Input(const Scalar& scalar) : value(scalar.to<T>()) {}  // NOLINT(google-explicit-constructor)
  Input(const Operand& o) : Input(o.is_scalar ? Input(o.scalar) : Input(o.view)) {}  // NOLINT
  View view{};
  T value{};
};

/// An input for a kernel: an array, or a number where that is null.
template <class T>
struct Source {
  const T* data;
  T value;

  __device__ T at(std::int64_t offset) const { return data == nullptr ? value : data[offset]; }
  /// N neighbours, or one element N times.
  template <int N>
  __device__ Pack<T, N> pack_at(std::int64_t offset, bool repeats) const {
    if (!repeats) return *reinterpret_cast<const Pack<T, N>*>(data + offset);
    const T repeated = at(offset);
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) pack.v[i] = repeated;
    return pack;
  }
};

/// Where operand k's element of position i lies.
template <int N>
struct Offsets {
  __device__ Offsets(const ElementwisePlan<N>& plan, std::int64_t i) {
    const int last = plan.ndim - 1;
    for (int d = 0; d < last; ++d) {
      const std::int64_t rest = i / plan.shape[d], here = i - rest * plan.shape[d];
      i = rest;
      for (int k = 0; k < N; ++k) v[k] += here * plan.strides[d][k];
    }
    for (int k = 0; k < N; ++k) v[k] += i * plan.strides[last][k];
  }
  std::int64_t v[N] = {};
};

/// The neighbours that a thread takes at a time: 16 bytes of the widest type.
template <class... Ts>
inline constexpr int kNeighbours = 16;
template <class T, class... Ts>
inline constexpr int kNeighbours<T, Ts...> = kPackSize<T> < kNeighbours<Ts...> ? kPackSize<T> : kNeighbours<Ts...>;

template <class R, int N, class Op, class... Ts>
__device__ Pack<R, N> map_pack(const Op& op, const Pack<Ts, N>&... x) {
  Pack<R, N> y;
  for (int i = 0; i < N; ++i) y.v[i] = op(x.v[i]...);
  return y;
}

template <int N, class Plan, class Op, class R, class... Ts, std::size_t... K>
__device__ void store_pack(std::index_sequence<K...>, const Plan& plan, std::int64_t i, const Op& op, R* out,
                           const Source<Ts>&... in) {
  const Offsets at(plan, i);
  *reinterpret_cast<Pack<R, N>*>(out + at.v[0]) =
      map_pack<R, N>(op, in.template pack_at<N>(at.v[1 + K], plan.strides[0][1 + K] == 0)...);
}

template <int N, class Op, class R, class... Ts, std::size_t... K>
__device__ void store_element(std::index_sequence<K...>, const Offsets<N>& at, const Op& op, R* out,
                              const Source<Ts>&... in) {
  out[at.v[0]] = op(in.at(at.v[1 + K])...);
}

/// `plan` counts packs. A plan of one dimension may have `rest` further elements.
template <class Plan, class Op, class R, class... Ts>
__global__ void __launch_bounds__(kBlock, 3)
    map_packs(const Plan plan, int rest, const Op op, R* out, Source<Ts>... in) {
  constexpr int n = kNeighbours<R, Ts...>;
  const std::index_sequence_for<Ts...> inputs;
  for (std::int64_t i = global_index(); i < plan.numel; i += global_stride()) {
    store_pack<n>(inputs, plan, i, op, out, in...);
  }
  if (global_index() < rest) {
    Offsets at(plan, plan.numel);
    for (std::size_t k = 0; k < 1 + sizeof...(Ts); ++k) at.v[k] += plan.strides[0][k] == 0 ? 0 : global_index();
    store_element(inputs, at, op, out, in...);
  }
}

template <class Plan, class Op, class R, class... Ts>
__global__ void __launch_bounds__(kBlock) map_elements(const Plan plan, const Op op, R* out, Source<Ts>... in) {
  const std::index_sequence_for<Ts...> inputs;
  for (std::int64_t i = global_index(); i < plan.numel; i += global_stride()) {
    store_element(inputs, Offsets(plan, i), op, out, in...);
  }
}

/// Whether operand k can be read or written in packs of `per` elements of `bytes` bytes.
template <int N>
bool has_packs(const ElementwisePlan<N>& plan, int k, const void* data, int per, std::size_t bytes) {
  if (plan.strides[0][k] == 0) return k > 0;
  bool packed = plan.strides[0][k] == 1 && is_aligned(data, static_cast<std::size_t>(per) * bytes);
  for (int d = 1; d < plan.ndim; ++d) packed &= plan.strides[d][k] % per == 0;
  return packed;
}

/// out = op(in...) at every position.
template <class R, class Op, class... Ts>
void map(const Scope& scope, const View& out, const Op& op, const Input<Ts>&... in) {
  constexpr int per = kNeighbours<R, Ts...>;
  auto plan = plan_elementwise(out, in.view...);
  using Plan = decltype(plan);
  if (plan.numel == 0) return;
  bool packed = has_packs(plan, 0, out.data, per, sizeof(R)) && (plan.ndim == 1 || plan.shape[0] % per == 0);
  [[maybe_unused]] int k = 0;
  ((packed = packed && has_packs(plan, ++k, in.view.data, per, sizeof(Ts))), ...);
  if (packed) {
    const int rest = static_cast<int>(plan.shape[0] % per);
    plan.shape[0] /= per;
    plan.numel /= per;
    for (std::int64_t& stride : plan.strides[0]) stride *= per;
    void (*const kernel)(Plan, int, Op, R*, Source<Ts>...) = map_packs<Plan, Op, R, Ts...>;
    launch(kernel, blocks_for(plan.numel + (rest > 0 ? 1 : 0)), kBlock, 0, scope.stream(), plan, rest, op, out.as<R>(),
           Source<Ts>{in.view.template as<const Ts>(), in.value}...);
  } else {
    void (*const kernel)(Plan, Op, R*, Source<Ts>...) = map_elements<Plan, Op, R, Ts...>;
    launch(kernel, blocks_for(plan.numel), kBlock, 0, scope.stream(), plan, op, out.as<R>(),
           Source<Ts>{in.view.template as<const Ts>(), in.value}...);
  }
}

}  // namespace tandem::kernels::cuda
