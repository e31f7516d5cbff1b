// Reductions over any dimensions, and extremes with their places.
//
// Every input element is read once and every result is written once. Where neighbours in memory belong to one result, a
// few lanes, a warp or a block sums them ("lines"); where they belong to different results, each thread walks down a
// column. With few results and many elements, the elements are cut into pieces for blocks of their own, whose sums a
// second kernel combines. Floating sums run in double, integer sums in 64 bits. The order of a sum depends on shape,
// strides and alignment only.

#include "../math/reduce.h"

#include "cuda_backend.h"
#include "reduce.cuh"

namespace tandem::kernels::cuda {
namespace {

/// Sums, maxima and minima.
template <class Op, class T>
struct Fold {
  using In = T;
  using Sum = typename Op::template Accumulator<T>;
  using Out = typename Op::template Result<T>*;
  static constexpr int kOutputs = 1, kUnroll = sizeof(T) == 1 ? 1 : 4;

  static __device__ Sum start() { return Op::template start<T>(); }
  static __device__ void add(Sum& sum, T x, std::int64_t) { sum = Op::combine(sum, static_cast<Sum>(x)); }
  static __device__ Sum combine(Sum a, Sum b) { return Op::combine(a, b); }
  static __device__ Sum shuffle_down(Sum sum, int offset) {
    return static_cast<Sum>(__shfl_down_sync(kAllLanes, sum, offset));
  }
  static __device__ void write(Out out, const std::int64_t (&offsets)[2], Sum sum) {
    out[offsets[1]] = static_cast<typename Op::template Result<T>>(sum);
  }
};

/// An extreme and the first place where it is.
template <class Op, class T>
struct Find {
  static constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();
  using In = T;
  struct Sum {
    std::int64_t place;
    T value;
  };
  struct Out {
    T* values;
    std::int64_t* places;
  };
  static constexpr int kOutputs = 2, kUnroll = sizeof(T) == 1 ? 1 : 2;

  static __device__ Sum start() { return {kNowhere, Op::template start<T>()}; }
  /// Places come in ascending order.
  static __device__ void add(Sum& sum, T x, std::int64_t place) {
    if (Op::better(x, sum.value) | (sum.place == kNowhere)) sum = {place, x};
  }
  static __device__ Sum combine(const Sum& a, const Sum& b) {
    const bool earlier = !Op::better(a.value, b.value) & (b.place < a.place);
    return (Op::better(b.value, a.value) | earlier) ? b : a;
  }
  static __device__ Sum shuffle_down(const Sum& sum, int offset) {
    return {__shfl_down_sync(kAllLanes, sum.place, offset),
            static_cast<T>(__shfl_down_sync(kAllLanes, sum.value, offset))};
  }
  static __device__ void write(const Out& out, const std::int64_t (&offsets)[3], const Sum& sum) {
    out.values[offsets[1]] = sum.value;
    out.places[offsets[2]] = sum.place;
  }
};

template <class Op, class T>
void fold(Scope& scope, const View& out, const View& in) {
  reduce_with<Fold<Op, T>>(scope, plan_reduce(in, out), in.as<T>(), out.as<typename Op::template Result<T>>());
}

template <class Op, class T>
void find(Scope& scope, const View& values, const View& indices, const View& in) {
  const ReducePlan<2> plan = plan_reduce(in, values, indices);
  if (plan.reduced.numel == 0) return;
  reduce_with<Find<Op, T>>(scope, plan, in.as<T>(), {values.as<T>(), indices.as<std::int64_t>()});
}

/// visit_dtype with bool taken as uint8, whose order and sums are the same.
template <class F>
void visit_ordered(DType dtype, const F& f) {
  visit_dtype(dtype == kBool ? kUInt8 : dtype, [&](auto tag) {
    if constexpr (!std::is_same_v<typename decltype(tag)::type, bool>) f(tag);
  });
}

}  // namespace

void CudaBackend::reduce(Stream& stream, ReduceOp op, const View& out, const View& in) const {
  Scope scope(stream, "reduce");
  visit_ordered(in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
      case ReduceOp::Sum: return fold<SumOf, T>(scope, out, in);
      case ReduceOp::Max: return fold<MaxOf, T>(scope, out, in);
      case ReduceOp::Min: return fold<MinOf, T>(scope, out, in);
    }
  });
}

void CudaBackend::reduce_index(Stream& stream, ReduceOp op, const View& values, const View& indices, const View& in,
                               int) const {
  Scope scope(stream, "reduce_index");
  visit_ordered(in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (op == ReduceOp::Max) {
      find<MaxOf, T>(scope, values, indices, in);
    } else {
      find<MinOf, T>(scope, values, indices, in);
    }
  });
}

}  // namespace tandem::kernels::cuda
