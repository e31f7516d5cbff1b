// Arithmetic and choice of two operands, from the functors of math/binary.h; comparisons are in compare.cu.
// Traffic: one read per operand that is an array, one write per element. Rounding: the functor's.

#include "../math/binary.h"

#include "../math/unary.h"
#include "cuda_backend.h"
#include "elementwise.cuh"

namespace tandem::kernels::cuda {
namespace {

template <class Op>
struct Apply {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return Op::forward(a, b);
  }
};

/// Powers that have shorter formulas than pow: the same ones as on CPU devices.
struct ShortPower {
  int exponent;  // in halves
  template <class T>
  __device__ T operator()(T x) const {
    switch (exponent) {
      case -4: return T(1) / (x * x);
      case -2: return Reciprocal::forward(x);
      case -1: return Rsqrt::forward(x);
      case 1: return Sqrt::forward(x);
      case 4: return Square::forward(x);
      case 6: return x * x * x;
      default: return x;
    }
  }
};

bool has_short_power(double exponent) {
  for (const double e : {-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0}) {
    if (exponent == e) return true;
  }
  return false;
}

template <class T>
struct ClampTo {
  Clamp<T> clamp;
  __device__ T operator()(T x) const { return clamp(x); }
};

struct Choose {
  template <class T>
  __device__ T operator()(bool c, T a, T b) const {
    return c ? a : b;
  }
};

template <class Op, class T>
inline constexpr bool has_type = std::is_floating_point_v<T> || (std::is_same_v<T, bool> ? Op::booleans : Op::integers);

}  // namespace

void CudaBackend::binary(Stream& stream, BinaryOp op, const View& out, const Operand& a, const Operand& b) const {
  const Scope scope(stream, "binary");
  if (op == BinaryOp::Pow && b.is_scalar && is_floating(out.dtype) && !a.is_scalar &&
      has_short_power(b.scalar.to<double>())) {
    const ShortPower power{static_cast<int>(2 * b.scalar.to<double>())};
    visit_floating(out.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      launch_elementwise(scope.stream(), plan_elementwise(out, a.view), power, out.as<T>(), source<T>(a));
    });
    return;
  }
  const auto plan = plan_elementwise(out, plan_view(a), plan_view(b));
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(Op)                                                                               \
  case BinaryOp::Op:                                                                                  \
    if constexpr (has_type<Op, T>) {                                                                  \
      launch_elementwise(scope.stream(), plan, Apply<Op>{}, out.as<T>(), source<T>(a), source<T>(b)); \
    }                                                                                                 \
    break;
      TANDEM_BINARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

void CudaBackend::clamp(Stream& stream, const View& out, const View& in, const Scalar& lo, const Scalar& hi) const {
  const Scope scope(stream, "clamp");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_elementwise(scope.stream(), plan_elementwise(out, in), ClampTo<T>{{lo.to<T>(), hi.to<T>()}}, out.as<T>(),
                       source<T>(in));
  });
}

void CudaBackend::where(Stream& stream, const View& out, const View& cond, const Operand& a, const Operand& b) const {
  const Scope scope(stream, "where");
  const auto plan = plan_elementwise(out, cond, plan_view(a), plan_view(b));
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_elementwise(scope.stream(), plan, Choose{}, out.as<T>(), source<bool>(cond), source<T>(a), source<T>(b));
  });
}

}  // namespace tandem::kernels::cuda
