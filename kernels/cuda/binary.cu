// Elementwise arithmetic and choice.
//
// binary: two reads and one write per element; an operand that is a number, or that repeats, is not read again. clamp:
// one and one; where: three reads, one of them a byte, and a write. Formulas are those of math/binary.h.

#include "../math/binary.h"

#include "../math/unary.h"
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

/// Powers much faster than pow.
struct PowerMinus2 {
  template <class T>
  static TANDEM_HD T forward(T x) {
    return T(1) / (x * x);
  }
};
struct Power1 {
  template <class T>
  static TANDEM_HD T forward(T x) {
    return x;
  }
};
struct Power3 {
  template <class T>
  static TANDEM_HD T forward(T x) {
    return x * x * x;
  }
};

template <class F>
struct ShortPower {
  template <class T>
  __device__ T operator()(T x) const {
    return F::forward(x);
  }
};

/// Whether there is a short form for the exponent; if so, it is queued.
template <class T>
bool short_power(const Scope& scope, const View& out, const Input<T>& x, double exponent) {
  const auto run = [&](auto formula) {
    map<T>(scope, out, formula, x);
    return true;
  };
  if (exponent == -2.0) return run(ShortPower<PowerMinus2>{});
  if (exponent == -1.0) return run(ShortPower<Reciprocal>{});
  if (exponent == -0.5) return run(ShortPower<Rsqrt>{});
  if (exponent == 0.5) return run(ShortPower<Sqrt>{});
  if (exponent == 1.0) return run(ShortPower<Power1>{});
  if (exponent == 2.0) return run(ShortPower<Square>{});
  if (exponent == 3.0) return run(ShortPower<Power3>{});
  return false;
}

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
      if (op == BinaryOp::Pow && b.is_scalar && short_power(scope, out, x, b.scalar.to<double>())) return;
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
