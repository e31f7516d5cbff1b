// y = f(x) and gx = g f'(x) from the functors of math/unary.h.
// Traffic: one read and one write per element forward, two reads and one write backward. Rounding: the functor's.

#include "../math/unary.h"

#include "cuda_backend.h"
#include "elementwise.cuh"

namespace tandem::kernels::cuda {
namespace {

template <class Op>
concept Limited = Op::limited;

template <class Op>
struct Forward {
  template <class T>
  __device__ T operator()(T x) const {
    if constexpr (Limited<Op>) {
      return Op::in_range(x) ? Op::forward(x) : Op::forward_far(x);
    } else {
      return Op::forward(x);
    }
  }
};

template <class Op>
struct Backward {
  template <class T>
  __device__ T operator()(T g, T x) const {
    if constexpr (Limited<Op>) {
      return Op::in_range(x) ? Op::backward(g, x) : Op::backward_far(g, x);
    } else {
      return Op::backward(g, x);
    }
  }
};

}  // namespace

void CudaBackend::unary(Stream& stream, UnaryOp op, const View& out, const View& in) const {
  const Scope scope(stream, "unary");
  const auto plan = plan_elementwise(out, in);
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(Op, name)                                                                  \
  case UnaryOp::Op:                                                                            \
    if constexpr (std::is_floating_point_v<T> || (Op::integers && !std::is_same_v<T, bool>)) { \
      launch_elementwise(scope.stream(), plan, Forward<Op>{}, out.as<T>(), source<T>(in));     \
    }                                                                                          \
    break;
      TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

void CudaBackend::unary_backward(Stream& stream, UnaryOp op, const View& out, const View& g, const View& saved) const {
  const Scope scope(stream, "unary_backward");
  // Where nothing is saved, the gradient stands in: the functor does not look at it.
  const View& x = saved.data ? saved : g;
  const auto plan = plan_elementwise(out, g, x);
  visit_floating(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(Op, name)                                                                          \
  case UnaryOp::Op:                                                                                    \
    launch_elementwise(scope.stream(), plan, Backward<Op>{}, out.as<T>(), source<T>(g), source<T>(x)); \
    break;
      TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

}  // namespace tandem::kernels::cuda
