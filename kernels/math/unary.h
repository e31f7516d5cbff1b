#pragma once
// Elementwise formulas of one operand, written once for every kind of device.
//
// To add one: write its functor, name it in TANDEM_UNARY_OPS at the end, which makes it known to every backend and
// declares the tensor function, and give its record in engine/ops/unary.cpp. Each functor has
//   saves     what its derivative is computed from,
//   integers  whether int32, int64 and uint8 have it too (never bool),
//   forward(x), and backward(g, saved) = g * derivative, `saved` being the input or the output.

#include <cmath>
#include <type_traits>

#include "elementary.h"
#include "hd.h"
#include "integer.h"

namespace tandem::kernels {

/// What the derivative of a unary op is a function of, besides the incoming gradient.
enum class Saves { Nothing, Input, Output };

struct Neg {
  static constexpr Saves saves = Saves::Nothing;
  static constexpr bool integers = true;
  template <class T>
  static TANDEM_HD T forward(T x) {
    if constexpr (std::is_floating_point_v<T>) {
      return -x;
    } else {
      return math::sub(T(0), x);
    }
  }
  template <class T>
  static TANDEM_HD T backward(T g, T) {
    return -g;
  }
};

/// -1, 0 or 1; NaN stays NaN. The derivative is 0 everywhere.
struct Sign {
  static constexpr Saves saves = Saves::Nothing;
  static constexpr bool integers = true;
  template <class T>
  static TANDEM_HD T forward(T x) {
    if constexpr (std::is_unsigned_v<T>) {
      return x != 0 ? T(1) : T(0);
    } else {
      T sign = x > T(0) ? T(1) : (x < T(0) ? T(-1) : T(0));
      return x != x ? x : sign;
    }
  }
  template <class T>
  static TANDEM_HD T backward(T, T) {
    return T(0);
  }
};

/// The derivative at 0 is 0.
struct Abs {
  static constexpr Saves saves = Saves::Input;
  static constexpr bool integers = true;
  template <class T>
  static TANDEM_HD T forward(T x) {
    if constexpr (std::is_floating_point_v<T>) {
      return math::abs(x);
    } else if constexpr (std::is_unsigned_v<T>) {
      return x;
    } else {
      return x < 0 ? math::sub(T(0), x) : x;
    }
  }
  template <class T>
  static TANDEM_HD T backward(T g, T x) {
    return g * Sign::forward(x);
  }
};

struct Exp {
  static constexpr Saves saves = Saves::Output;
  static constexpr bool integers = false;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::exp(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T y) {
    return g * y;
  }
};

struct Log {
  static constexpr Saves saves = Saves::Input;
  static constexpr bool integers = false;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::log(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T x) {
    return g / x;
  }
};

/// The derivative at 0 is infinite.
struct Sqrt {
  static constexpr Saves saves = Saves::Output;
  static constexpr bool integers = false;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::sqrt(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T y) {
    return g / (T(2) * y);
  }
};

struct Rsqrt {
  static constexpr Saves saves = Saves::Output;
  static constexpr bool integers = false;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return T(1) / math::sqrt(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T y) {
    return T(-0.5) * g * (y * y * y);
  }
};

struct Reciprocal {
  static constexpr Saves saves = Saves::Output;
  static constexpr bool integers = false;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return T(1) / x;
  }
  template <class T>
  static TANDEM_HD T backward(T g, T y) {
    return -g * (y * y);
  }
};

struct Square {
  static constexpr Saves saves = Saves::Input;
  static constexpr bool integers = true;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::mul(x, x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T x) {
    return T(2) * g * x;
  }
};

// Sin and Cos have fast formulas in a limited range only. Loops ask in_range, and outside it take the `_far` forms.
struct Sin {
  static constexpr Saves saves = Saves::Input;
  static constexpr bool integers = false;
  static constexpr bool limited = true;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::sin(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T x) {
    return g * math::cos(x);
  }
  template <class T>
  static TANDEM_HD bool in_range(T x) {
    return math::in_trig_range(x);
  }
  template <class T>
  static TANDEM_HD T forward_far(T x) {
    return std::sin(x);
  }
  template <class T>
  static TANDEM_HD T backward_far(T g, T x) {
    return g * std::cos(x);
  }
};

struct Cos {
  static constexpr Saves saves = Saves::Input;
  static constexpr bool integers = false;
  static constexpr bool limited = true;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::cos(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T x) {
    return -g * math::sin(x);
  }
  template <class T>
  static TANDEM_HD bool in_range(T x) {
    return math::in_trig_range(x);
  }
  template <class T>
  static TANDEM_HD T forward_far(T x) {
    return std::cos(x);
  }
  template <class T>
  static TANDEM_HD T backward_far(T g, T x) {
    return -g * std::sin(x);
  }
};

struct Tanh {
  static constexpr Saves saves = Saves::Output;
  static constexpr bool integers = false;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::tanh(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T y) {
    return g * (T(1) - y * y);
  }
};

struct Sigmoid {
  static constexpr Saves saves = Saves::Output;
  static constexpr bool integers = false;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::sigmoid(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T y) {
    return g * (y * (T(1) - y));
  }
};

/// NaN stays NaN. The derivative at 0 is 0.
struct Relu {
  static constexpr Saves saves = Saves::Output;
  static constexpr bool integers = true;
  template <class T>
  static TANDEM_HD T forward(T x) {
    if constexpr (std::is_unsigned_v<T>) {
      return x;
    } else {
      return x < T(0) ? T(0) : x;
    }
  }
  template <class T>
  static TANDEM_HD T backward(T g, T y) {
    return y <= T(0) ? T(0) : g;
  }
};

/// x Phi(x) with the exact distribution function (Hendrycks and Gimpel 2016).
struct Gelu {
  static constexpr Saves saves = Saves::Input;
  static constexpr bool integers = false;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::gelu(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T x) {
    return g * (math::normal_cdf(x) + x * math::normal_density(x));
  }
};

/// x sigmoid(x), also known as swish.
struct Silu {
  static constexpr Saves saves = Saves::Input;
  static constexpr bool integers = false;
  template <class T>
  static TANDEM_HD T forward(T x) {
    return x * math::sigmoid(x);
  }
  template <class T>
  static TANDEM_HD T backward(T g, T x) {
    T s = math::sigmoid(x);
    return g * (s * (T(1) + x * (T(1) - s)));
  }
};

/// X(Functor, function name)
#define TANDEM_UNARY_OPS(X) \
  X(Neg, neg)               \
  X(Abs, abs)               \
  X(Sign, sign)             \
  X(Exp, exp)               \
  X(Log, log)               \
  X(Sqrt, sqrt)             \
  X(Rsqrt, rsqrt)           \
  X(Reciprocal, reciprocal) \
  X(Square, square)         \
  X(Sin, sin)               \
  X(Cos, cos)               \
  X(Tanh, tanh)             \
  X(Sigmoid, sigmoid)       \
  X(Relu, relu)             \
  X(Gelu, gelu)             \
  X(Silu, silu)

#define TANDEM_ENUMERATOR(Functor, name) Functor,
enum class UnaryOp { TANDEM_UNARY_OPS(TANDEM_ENUMERATOR) };
#undef TANDEM_ENUMERATOR

/// What unary_backward wants for an op.
constexpr Saves saves_of(UnaryOp op) {
  switch (op) {
#define TANDEM_CASE(Functor, name) \
  case UnaryOp::Functor: return Functor::saves;
    TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
  }
  return Saves::Nothing;
}

}  // namespace tandem::kernels
