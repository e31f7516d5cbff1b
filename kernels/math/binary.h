#pragma once
// The formulas of TANDEM_BINARY_OPS: forward(a, b), with `integers` and `booleans` telling for which types besides
// float and double there is one. Integers wrap around.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "hd.h"
#include "integer.h"

namespace tandem::kernels {

/// For bool: or.
struct Add {
  static constexpr bool integers = true, booleans = true;
  template <class T>
  static TANDEM_HD T forward(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a | b;
    } else {
      return math::add(a, b);
    }
  }
};

struct Sub {
  static constexpr bool integers = true, booleans = false;
  template <class T>
  static TANDEM_HD T forward(T a, T b) {
    return math::sub(a, b);
  }
};

/// For bool: and.
struct Mul {
  static constexpr bool integers = true, booleans = true;
  template <class T>
  static TANDEM_HD T forward(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a & b;
    } else {
      return math::mul(a, b);
    }
  }
};

struct Div {
  static constexpr bool integers = false, booleans = false;
  template <class T>
  static TANDEM_HD T forward(T a, T b) {
    return a / b;
  }
};

/// As C's pow; pow(0, 0) = 1. Integers: by squaring; a negative exponent gives the quotient rounded toward zero, and 0
/// for base 0.
struct Pow {
  static constexpr bool integers = true, booleans = false;
  template <class T>
  static TANDEM_HD T forward(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::pow(a, b);
    } else {
      if constexpr (std::is_signed_v<T>) {
        if (b < 0) return a == 1 ? T(1) : (a == -1 ? ((b & 1) != 0 ? T(-1) : T(1)) : T(0));
      }
      T power = 1;
      for (T base = a; b != 0; b = static_cast<T>(b >> 1)) {
        if ((b & 1) != 0) power = math::mul(power, base);
        base = math::mul(base, base);
      }
      return power;
    }
  }
};

/// NaN if an operand is NaN. For bool: or.
struct Maximum {
  static constexpr bool integers = true, booleans = true;
  template <class T>
  static TANDEM_HD T forward(T a, T b) {
    T larger = a > b ? a : b;  // b if one is NaN
    return a != a ? a : larger;
  }
};

/// NaN if an operand is NaN. For bool: and.
struct Minimum {
  static constexpr bool integers = true, booleans = true;
  template <class T>
  static TANDEM_HD T forward(T a, T b) {
    T smaller = a < b ? a : b;  // b if one is NaN
    return a != a ? a : smaller;
  }
};

/// min(max(x, lo), hi); NaN stays NaN.
template <class T>
struct Clamp {
  T lo, hi;
  TANDEM_HD T operator()(T x) const {
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
  }
};

}  // namespace tandem::kernels
