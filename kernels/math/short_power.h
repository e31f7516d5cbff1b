#pragma once
// Powers with formulas much faster than pow.

#include "hd.h"
#include "unary.h"

namespace tandem::kernels {

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

/// Calls f(Formula{}) if the exponent has one, and tells whether it has.
template <class F>
bool visit_short_power(double exponent, F&& f) {
  if (exponent == -2.0) return f(PowerMinus2{}), true;
  if (exponent == -1.0) return f(Reciprocal{}), true;
  if (exponent == -0.5) return f(Rsqrt{}), true;
  if (exponent == 0.5) return f(Sqrt{}), true;
  if (exponent == 1.0) return f(Power1{}), true;
  if (exponent == 2.0) return f(Square{}), true;
  if (exponent == 3.0) return f(Power3{}), true;
  return false;
}

}  // namespace tandem::kernels
