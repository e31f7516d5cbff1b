// Elementwise arithmetic and choice.
//
// binary: two reads and one write per element; an operand that is a number, or that repeats, is not read again. clamp:
// one and one; where: three reads, one of them a byte, and a write. Formulas are those of math/binary.h.

#include "../math/binary.h"

#include "../math/short_power.h"
#include "cuda_backend.h"
#include "elementwise.cuh"

namespace tandem::kernels::cuda {
namespace {

template <class F>
struct Arithmetic {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return F::forward(a, b);
  }
};

template <class F>
struct ShortPower {
  template <class T>
  __device__ T operator()(T x) const {
    return F::forward(x);
  }
};

template <class T>
struct Clamped {
  Clamp<T> clamp;
  __device__ T operator()(T x) const { return clamp(x); }
};

struct Choose {
  template <class T>
  __device__ T operator()(std::uint8_t condition, T yes, T no) const {
    return condition != 0 ? yes : no;
  }
};

}  // namespace

void CudaBackend::binary(Stream& stream, BinaryOp op, const View& out, const Operand& a, const Operand& b) const {
  Scope scope(stream, "binary");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Input<T> x(a), y(b);
    if constexpr (std::is_floating_point_v<T>) {
      const auto run = [&](auto formula) { map<T>(scope, out, ShortPower<decltype(formula)>{}, x); };
      if (op == BinaryOp::Pow && b.is_scalar && visit_short_power(b.scalar.to<double>(), run)) return;
    }
    switch (op) {
#define TANDEM_CASE(F)                                                                                    \
  case BinaryOp::F:                                                                                       \
    if constexpr (std::is_floating_point_v<T> || (std::is_same_v<T, bool> ? F::booleans : F::integers)) { \
      map<T>(scope, out, Arithmetic<F>{}, x, y);                                                          \
    }                                                                                                     \
    break;
      TANDEM_BINARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

void CudaBackend::clamp(Stream& stream, const View& out, const View& in, const Scalar& lo, const Scalar& hi) const {
  Scope scope(stream, "clamp");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    map<T>(scope, out, Clamped<T>{{lo.to<T>(), hi.to<T>()}}, Input<T>(in));
  });
}

void CudaBackend::where(Stream& stream, const View& out, const View& cond, const Operand& a, const Operand& b) const {
  Scope scope(stream, "where");
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    map<T>(scope, out, Choose{}, Input<std::uint8_t>(cond), Input<T>(a), Input<T>(b));
  });
}

}  // namespace tandem::kernels::cuda
