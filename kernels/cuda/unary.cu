// Elementwise functions of one tensor, and their derivatives.
//
// unary: one read and one write per element; unary_backward: two reads and one write, or one and one where the
// derivative needs nothing but the gradient. Formulas are those of math/unary.h; here a * b + c may be fused.

#include "../math/unary.h"

#include "cuda_backend.h"
#include "elementwise.cuh"

namespace tandem::kernels::cuda {
namespace {

/// A formula that does not hold everywhere (see Sin).
template <class F>
concept Limited = F::limited;

// Calls, so that the long way of few elements takes no registers from the others.
template <class F, class T>
__device__ __attribute__((noinline)) T forward_far(T x) {
  return F::forward_far(x);
}
template <class F, class T>
__device__ __attribute__((noinline)) T backward_far(T g, T x) {
  return F::backward_far(g, x);
}

template <class F>
struct Forward {
  template <class T>
  __device__ T operator()(T x) const {
    if constexpr (Limited<F>) {
      return F::in_range(x) ? F::forward(x) : forward_far<F>(x);
    } else {
      return F::forward(x);
    }
  }
};

template <class F>
struct Backward {
  template <class T>
  __device__ T operator()(T g, T x) const {
    if constexpr (Limited<F>) {
      return F::in_range(x) ? F::backward(g, x) : backward_far<F>(g, x);
    } else {
      return F::backward(g, x);
    }
  }
  /// Of a formula that needs nothing saved.
  template <class T>
  __device__ T operator()(T g) const {
    return F::backward(g, g);
  }
};

}  // namespace

void CudaBackend::unary(Stream& stream, UnaryOp op, const View& out, const View& in) const {
  Scope scope(stream, "unary");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(F, name)                                                                  \
  case UnaryOp::F:                                                                            \
    if constexpr (std::is_floating_point_v<T> || (F::integers && !std::is_same_v<T, bool>)) { \
      map<T>(scope, out, Forward<F>{}, Input<T>(in));                                         \
    }                                                                                         \
    break;
      TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

void CudaBackend::unary_backward(Stream& stream, UnaryOp op, const View& out, const View& g, const View& saved) const {
  Scope scope(stream, "unary_backward");
  visit_floating(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(F, name)                                           \
  case UnaryOp::F:                                                     \
    if constexpr (F::saves == Saves::Nothing) {                        \
      map<T>(scope, out, Backward<F>{}, Input<T>(g));                  \
    } else {                                                           \
      map<T>(scope, out, Backward<F>{}, Input<T>(g), Input<T>(saved)); \
    }                                                                  \
    break;
      TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

}  // namespace tandem::kernels::cuda
