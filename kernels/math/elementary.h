#pragma once
// Elementary functions for float and double without branches, tables or calls, so that any loop over them vectorises
// and every device kind computes them alike. The results of two device kinds may differ in the last bits, because one
// may fuse a * b + c; compiled without that (-ffp-contract=off, -fmad=false) they are equal.
//
// Method: the classical argument reductions (Cody and Waite 1980; Tang 1989; fdlibm), then a polynomial that
// interpolates the remaining factor at Chebyshev nodes, computed with 50 digits. Largest errors, measured in
// tests/kernels/test_math.cpp against long double, in units in the last place:
//                 float   double
//   exp            1.0     1.1
//   log            0.8     0.8
//   sin, cos       1.5     1.5     for |x| <= 1e6, see in_trig_range
//   tanh           2.2     2.3
//   sigmoid        2.2     2.3
//   normal_cdf     3.2     3.3     the lower tail included
//   gelu           3.1     3.7
// Denormal arguments and results, infinities, NaN and the sign of zero are as in C's functions.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hd.h"

namespace tandem::kernels::math {

/// The parts of an IEEE number.
template <class T>
struct Ieee;

template <>
struct Ieee<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa = 23;
  static constexpr Bits bias = 127;
  static constexpr Bits sign = Bits{1} << 31;
};

template <>
struct Ieee<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa = 52;
  static constexpr Bits bias = 1023;
  static constexpr Bits sign = Bits{1} << 63;
};

template <class T>
TANDEM_HD typename Ieee<T>::Bits to_bits(T x) {
  return __builtin_bit_cast(typename Ieee<T>::Bits, x);
}
template <class T>
TANDEM_HD T from_bits(typename Ieee<T>::Bits bits) {
  return __builtin_bit_cast(T, bits);
}

template <class T>
TANDEM_HD T abs(T x) {
  return from_bits<T>(to_bits(x) & ~Ieee<T>::sign);
}
/// |magnitude| with the sign of `sign`; `magnitude` is not negative.
template <class T>
TANDEM_HD T with_sign(T magnitude, T sign) {
  return from_bits<T>(to_bits(magnitude) | (to_bits(sign) & Ieee<T>::sign));
}

template <class T>
TANDEM_HD T sqrt(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return ::sqrtf(x);
  } else {
    return ::sqrt(x);
  }
}

/// c0 + c1 x + c2 x^2 + ...
template <class T>
TANDEM_HD T polynomial(T, T c0) {
  return c0;
}
template <class T, class... Rest>
TANDEM_HD T polynomial(T x, T c0, Rest... rest) {
  return c0 + x * polynomial(x, static_cast<T>(rest)...);
}

/// x to the nearest integer, as a number and (modulo a power of two) as bits; |x| < 2^(mantissa - 2).
template <class T>
struct Rounded {
  T value;
  typename Ieee<T>::Bits bits;
};
template <class T>
TANDEM_HD Rounded<T> round_product(T x, T factor) {
  constexpr T magic = T(3) * T(typename Ieee<T>::Bits{1} << (Ieee<T>::mantissa - 1));  // ulp(magic) = 1
  T shifted = x * factor + magic;
  return {shifted - magic, to_bits(shifted) - to_bits(magic)};
}

/// 2^n for normal results.
template <class T>
TANDEM_HD T power_of_two(typename Ieee<T>::Bits n) {
  return from_bits<T>((n + Ieee<T>::bias) << Ieee<T>::mantissa);
}

/// x - n log 2, |r| <= log(2) / 2, and n.
template <class T>
struct ExpReduced {
  T r;
  typename Ieee<T>::Bits n;
};
template <class T>
TANDEM_HD ExpReduced<T> exp_reduce(T x) {
  Rounded<T> n = round_product(x, T(1.44269504088896340736));
  if constexpr (std::is_same_v<T, float>) {
    return {(x - n.value * 0.693359375f) + n.value * 2.12194440054690582e-4f, n.bits};
  } else {
    return {(x - n.value * 6.93147180369123816490e-01) - n.value * 1.90821492927058770002e-10, n.bits};
  }
}

/// exp(r) - 1 for |r| <= log(2) / 2.
template <class T>
TANDEM_HD T expm1_reduced(T r) {
  T p;
  if constexpr (std::is_same_v<T, float>) {
    p = polynomial(r, 0.5f, 0.16666666681704215f, 0.0416664641974056923f, 0.00833331084464786256f,
                   0.00139337307157920825f, 0.00019891080463998842f);
  } else {
    p = polynomial(r, 0.5, 0.166666666666666675, 0.0416666666666238205, 0.0083333333333300382, 0.00138888889173670806,
                   0.00019841269863171556, 0.0000248015210578682052, 2.75572682769056962e-6, 2.76202015910315488e-7,
                   2.5100472505694996e-8);
  }
  return r + r * r * p;
}

/// factor * exp(x + low): x is exact, `low` is the little that rounding took from it, 0 < factor <= 1.
template <class T>
TANDEM_HD T exp_sum(T x, T low, T factor) {
  using Bits = typename Ieee<T>::Bits;
  constexpr T max = std::is_same_v<T, float> ? T(89) : T(710);     // exp overflows
  constexpr T min = std::is_same_v<T, float> ? T(-104) : T(-746);  // exp rounds to zero
  x = x > max ? max : x;
  x = x < min ? min : x;
  ExpReduced<T> e = exp_reduce(x);
  T y = factor + factor * expm1_reduced(e.r + low);
  // 2^n in two factors, so that neither overflows and a denormal result is rounded once.
  Bits half = ((e.n + Bits{4096}) >> 1) - Bits{2048};
  return y * power_of_two<T>(half) * power_of_two<T>(e.n - half);
}

template <class T>
TANDEM_HD T exp(T x) {
  return exp_sum(x, T(0), T(1));
}

template <class T>
TANDEM_HD T log(T x) {
  using Bits = typename Ieee<T>::Bits;
  constexpr int mantissa = Ieee<T>::mantissa;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  constexpr T smallest = std::numeric_limits<T>::min();
  const Bits sqrt_half = to_bits(T(0.707106781186547524401));
  // x = 2^k m with sqrt(1/2) <= m < sqrt(2).
  bool denormal = x < smallest;
  T scaled = denormal ? x * T(Bits{1} << mantissa) : x;
  Bits bits = to_bits(scaled) + (to_bits(T(1)) - sqrt_half);
  Bits exponent = bits >> mantissa;
  T f = from_bits<T>((bits & ((Bits{1} << mantissa) - 1)) + sqrt_half) - T(1);
  constexpr T two_m = T(Bits{1} << mantissa);
  T k = from_bits<T>(exponent | to_bits(two_m)) - (two_m + (denormal ? T(Ieee<T>::bias + mantissa) : T(Ieee<T>::bias)));
  // log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + R(s^2)), s = f / (2 + f).
  T s = f / (T(2) + f);
  T z = s * s;
  T half_square = T(0.5) * f * f;
  T r, ln2_high, ln2_low;
  if constexpr (std::is_same_v<T, float>) {
    r = polynomial(z, 0.666666665540420124f, 0.400001222118106494f, 0.285507786331919654f, 0.233316144718434992f);
    ln2_high = 6.9313812256e-01f;
    ln2_low = 9.0580006145e-06f;
  } else {
    r = polynomial(z, 0.666666666666666971, 0.399999999998988905, 0.285714286262538376, 0.222222110893794962,
                   0.181828924325368712, 0.153316117220550079, 0.14617807153417325);
    ln2_high = 6.93147180369123816490e-01;
    ln2_low = 1.90821492927058770002e-10;
  }
  T y = k * ln2_high - ((half_square - (s * (half_square + z * r) + k * ln2_low)) - f);
  y = x > T(0) ? y : (x == T(0) ? -infinity : nan);
  return x < infinity ? y : x;
}

/// sin(r) and cos(r) for |r| <= pi / 4.
template <class T>
TANDEM_HD T sin_reduced(T r) {
  T z = r * r;
  if constexpr (std::is_same_v<T, float>) {
    return r + r * z *
                   polynomial(z, -0.166666666638327758f, 0.00833333186596379595f, -0.000198400820151279987f,
                              2.72493143604167987e-6f);
  } else {
    return r + r * z *
                   polynomial(z, -0.166666666666666667, 0.00833333333333333147, -0.000198412698412650171,
                              2.75573192193019374e-6, -2.50521062195283667e-8, 1.60585295732917381e-10,
                              -7.5865766484052612e-13);
  }
}
template <class T>
TANDEM_HD T cos_reduced(T r) {
  T z = r * r;
  T p;
  if constexpr (std::is_same_v<T, float>) {
    p = polynomial(z, 0.0416666666643024153f, -0.00138888876647172767f, 0.000024800596437593729f,
                   -2.73004488746506004e-7f);
  } else {
    p = polynomial(z, 0.0416666666666666654, -0.00138888888888873823, 0.0000248015872987430806, -2.75573172600147074e-7,
                   2.08761438292139369e-9, -1.13824568658404824e-11);
  }
  // 1 - z / 2 rounds; what it loses is added back.
  T half = T(0.5) * z;
  T w = T(1) - half;
  return w + (((T(1) - w) - half) + z * z * p);
}

/// x - q pi / 2, |r| <= pi / 4, and q modulo 4.
template <class T>
struct Quadrant {
  T r;
  typename Ieee<T>::Bits q;
};
template <class T>
TANDEM_HD Quadrant<T> trig_reduce(T x) {
  // pi / 2 in parts of 33 bits, whose products with q < 2^20 are exact.
  constexpr double part1 = 1.57079632673412561417e+00;
  constexpr double part2 = 6.07710050630396597660e-11;
  constexpr double part3 = 2.02226624879595063154e-21;
  double wide = static_cast<double>(x);
  Rounded<double> q = round_product(wide, 0.63661977236758134308);
  double r = wide - q.value * part1;
  double t = q.value * part2;
  double high = r - t;
  double low = (r - high) - t;
  return {static_cast<T>(high - (q.value * part3 - low)), static_cast<typename Ieee<T>::Bits>(q.bits)};
}

/// Where sin and cos hold their error. Outside, callers take the C library's.
template <class T>
TANDEM_HD bool in_trig_range(T x) {
  return abs(x) <= T(1e6);
}

template <class T>
TANDEM_HD T sin_of(Quadrant<T> a) {
  T y = (a.q & 1) != 0 ? cos_reduced(a.r) : sin_reduced(a.r);
  return from_bits<T>(to_bits(y) ^ ((a.q & 2) != 0 ? Ieee<T>::sign : 0));
}
template <class T>
TANDEM_HD T cos_of(Quadrant<T> a) {
  return sin_of(Quadrant<T>{a.r, a.q + 1});
}

template <class T>
TANDEM_HD T sin(T x) {
  T y = sin_of(trig_reduce(x));
  return x == T(0) ? x : y;
}
template <class T>
TANDEM_HD T cos(T x) {
  return cos_of(trig_reduce(x));
}

/// 2 pi u for 0 <= u <= 1, reduced: sin_of and cos_of take it.
template <class T>
TANDEM_HD Quadrant<T> turns(T u) {
  Rounded<T> q = round_product(u, T(4));
  return {(T(4) * u - q.value) * T(1.57079632679489661923), q.bits};
}

template <class T>
TANDEM_HD T tanh(T x) {
  // With e = exp(2|x|) - 1, kept exact near zero: e / (e + 2).
  constexpr T saturated = std::is_same_v<T, float> ? T(20) : T(42);
  T a = T(2) * abs(x);
  a = a > saturated ? saturated : a;
  ExpReduced<T> reduced = exp_reduce(a);
  T scale = power_of_two<T>(reduced.n);
  T e = scale * expm1_reduced(reduced.r) + (scale - T(1));
  return with_sign(e / (e + T(2)), x);
}

template <class T>
TANDEM_HD T sigmoid(T x) {
  T e = exp(-abs(x));
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}

/// factor * exp(-x^2 / 2), with x^2 taken to twice the precision; |x| <= 40, 0 < factor <= 1.
template <class T>
TANDEM_HD T exp_half_square(T x, T factor) {
  using Bits = typename Ieee<T>::Bits;
  constexpr Bits low_half = (Bits{1} << (Ieee<T>::mantissa / 2 + 1)) - 1;
  T high = from_bits<T>(to_bits(x) & ~low_half);  // its square is exact
  return exp_sum(T(-0.5) * high * high, T(-0.5) * (x - high) * (x + high), factor);
}

/// |x|, or for larger ones 40, beyond which the normal distribution has no mass that could be represented.
template <class T>
TANDEM_HD T normal_range(T x) {
  T a = abs(x);
  return a > T(40) ? T(40) : a;
}

/// The upper tail of the standard normal distribution without its exponential:
/// P(X > a) = exp(-a^2 / 2) normal_tail(a) for 0 <= a <= 40.
template <class T>
TANDEM_HD T normal_tail(T a) {
  // A polynomial in t over 1 + a (after Shepherd and Laframboise 1981).
  T t = (a - T(4)) / (a + T(4));
  T h;
  if constexpr (std::is_same_v<T, float>) {
    h = polynomial(t, 0.4720532064f, -0.096703467981f, 0.013999636593f, 0.028600032795f, -0.032197815354f,
                   0.017939449482f, -0.0050021408532f, -0.00029991876127f, 0.00069084485557f, -6.6737184924e-5f,
                   -7.4374544168e-5f);
  } else {
    h = polynomial(t, 0.472053206509844681, -0.0967034773265258147, 0.0139996347244253846, 0.0286003640535514838,
                   -0.0321978374280841207, 0.0179360974796536255, -0.00500237859108470679, -0.000285623097691877322,
                   0.000694897105064763355, -0.0000944302561129454738, -0.0000878531873203583384,
                   0.0000212500598675120436, 0.0000136268867792075717, -3.43222926639272937e-6, -2.61296324723691052e-6,
                   4.04534960740403658e-7, 5.52119533224264393e-7, 1.42485002339593007e-9, -1.11160031367018874e-7,
                   -1.99077979094749738e-8, 1.77618318838503682e-8, 6.26813572535948719e-9, -1.57622649049166212e-9,
                   -8.02139310026269511e-10);
  }
  return h / (T(1) + a);
}

/// The distribution function of the standard normal, (1 + erf(x / sqrt(2))) / 2.
template <class T>
TANDEM_HD T normal_cdf(T x) {
  T a = normal_range(x);
  T tail = exp_half_square(a, normal_tail(a));
  return x < T(0) ? tail : T(1) - tail;
}

/// The density of the standard normal, exp(-x^2 / 2) / sqrt(2 pi).
template <class T>
TANDEM_HD T normal_density(T x) {
  return exp_half_square(normal_range(x), T(0.398942280401432677940));
}

/// x normal_cdf(x); 0 at minus infinity.
template <class T>
TANDEM_HD T gelu(T x) {
  T a = normal_range(x);
  T tail = exp_half_square(a, a * normal_tail(a));
  return x < T(0) ? -tail : x - tail;
}

}  // namespace tandem::kernels::math
