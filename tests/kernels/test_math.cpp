// The formulas of kernels/math: errors against long double, special values, random numbers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "../../kernels/cpu/isa.h"
#include "../../kernels/math/binary.h"
#include "../../kernels/math/convert.h"
#include "../../kernels/math/optim.h"
#include "../../kernels/math/philox.h"
#include "../../kernels/math/reduce.h"
#include "../../kernels/math/unary.h"
#include "../catch.h"

#define TANDEM_ISA_SOURCE "../../tests/kernels/math_loops.inl"
#include "../../kernels/cpu/each_isa.h"

using namespace tandem::kernels;

namespace {

using Real = long double;

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

/// |value - exact| in units in the last place of `exact`; huge where one is NaN or infinite and the other is not.
template <class T>
double ulps(T value, Real exact) {
  constexpr double wrong = 1e30;
  if (std::isnan(exact) || std::isnan(value)) return std::isnan(exact) && std::isnan(value) ? 0 : wrong;
  if (std::isinf(value)) return static_cast<T>(exact) == value ? 0 : wrong;
  const int least = std::numeric_limits<T>::min_exponent - 1;
  const int exponent = exact == 0 ? least : std::max(std::ilogb(exact), least);
  const Real unit = std::ldexp(Real(1), exponent - std::numeric_limits<T>::digits + 1);
  return static_cast<double>(std::fabs(value - exact) / unit);
}

struct NormalCdf {
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::normal_cdf(x);
  }
};
struct NormalDensity {
  template <class T>
  static TANDEM_HD T forward(T x) {
    return math::normal_density(x);
  }
};

/// The results of every instruction set that is here, one after the other.
template <class Op, class T>
std::vector<std::vector<T>> apply_all(const std::vector<T>& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::vector<T>> results(1, std::vector<T>(x.size()));
  cpu::isa_base::apply<Op>(results.back().data(), x.data(), n);
#if defined(__x86_64__)
  if (cpu::isa() >= cpu::Isa::Avx2) {
    results.emplace_back(x.size());
    cpu::isa_avx2::apply<Op>(results.back().data(), x.data(), n);
  }
  if (cpu::isa() >= cpu::Isa::Avx512) {
    results.emplace_back(x.size());
    cpu::isa_avx512::apply<Op>(results.back().data(), x.data(), n);
  }
#endif
  return results;
}

/// Evenly spread over [lo, hi], and over the exponents in it, of both signs where `lo` is negative.
template <class T>
std::vector<T> samples(double lo, double hi, int n = 60000) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> even(lo, hi);
  const double least = std::log2(static_cast<double>(std::numeric_limits<T>::denorm_min()));
  std::uniform_real_distribution<double> exponent(least, std::log2(std::max(std::abs(lo), std::abs(hi))));
  std::vector<T> x;
  for (int i = 0; i < n; ++i) {
    x.push_back(static_cast<T>(even(random)));
    double wide = std::exp2(exponent(random));
    if (wide <= hi) x.push_back(static_cast<T>(wide));
    if (-wide >= lo) x.push_back(static_cast<T>(-wide));
  }
  return x;
}

template <class Op, class T, class F>
double worst(double lo, double hi, F exact) {
  const std::vector<T> x = samples<T>(lo, hi);
  double largest = 0;
  for (const std::vector<T>& y : apply_all<Op, T>(x)) {
    for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, ulps(y[i], exact(Real(x[i]))));
  }
  return largest;
}

Real exact_sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }
Real exact_cdf(Real x) { return std::erfc(-x / std::sqrt(Real(2))) / 2; }
Real exact_density(Real x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(Real(-1))); }
Real exact_gelu(Real x) { return x * exact_cdf(x); }

}  // namespace

TEMPLATE_TEST_CASE("Elementary functions are within a few ulps", "[math]", float, double) {
  using T = TestType;
  auto exp = [](Real x) { return std::exp(x); };
  auto log = [](Real x) { return std::log(x); };
  auto sin = [](Real x) { return std::sin(x); };
  auto cos = [](Real x) { return std::cos(x); };
  auto tanh = [](Real x) { return std::tanh(x); };
  auto silu = [](Real x) { return x * exact_sigmoid(x); };
  CHECK(worst<Exp, T>(-800, 800, exp) < 1.5);
  CHECK(worst<Exp, T>(-100, 80, exp) < 1.5);
  CHECK(worst<Log, T>(0, 1e30, log) < 1);
  CHECK(worst<Log, T>(0.3, 3, log) < 1);
  CHECK(worst<Sin, T>(-1e6, 1e6, sin) < 2);
  CHECK(worst<Sin, T>(-10, 10, sin) < 2);
  CHECK(worst<Cos, T>(-1e6, 1e6, cos) < 2);
  CHECK(worst<Cos, T>(-10, 10, cos) < 2);
  CHECK(worst<Tanh, T>(-25, 25, tanh) < 3);
  CHECK(worst<Tanh, T>(-1, 1, tanh) < 3);
  CHECK(worst<Sigmoid, T>(-700, 700, exact_sigmoid) < 3);
  CHECK(worst<Sigmoid, T>(-9, 9, exact_sigmoid) < 3);
  CHECK(worst<NormalCdf, T>(-39, 10, exact_cdf) < 4);
  CHECK(worst<NormalCdf, T>(-5, 5, exact_cdf) < 4);
  CHECK(worst<NormalDensity, T>(-39, 39, exact_density) < 2);
  CHECK(worst<Gelu, T>(-39, 39, exact_gelu) < 4);
  CHECK(worst<Gelu, T>(-13, 2, exact_gelu) < 4);
  CHECK(worst<Silu, T>(-80, 80, silu) < 4);
}

TEMPLATE_TEST_CASE("Instruction sets agree within ulps", "[math]", float, double) {
  using T = TestType;
  auto spread = [](const std::vector<std::vector<T>>& results) {
    double largest = 0;
    for (const std::vector<T>& y : results) {
      for (std::size_t i = 0; i < y.size(); ++i) largest = std::max(largest, ulps(y[i], Real(results[0][i])));
    }
    return largest;
  };
  const std::vector<T> x = samples<T>(-30, 30, 5000);
  CHECK(spread(apply_all<Exp>(x)) <= 3);
  CHECK(spread(apply_all<Log>(x)) <= 2);
  CHECK(spread(apply_all<Sin>(x)) <= 3);
  CHECK(spread(apply_all<Tanh>(x)) <= 5);
  CHECK(spread(apply_all<Sigmoid>(x)) <= 5);
  CHECK(spread(apply_all<Gelu>(x)) <= 7);
  CHECK(spread(apply_all<Sqrt>(x)) == 0);
  CHECK(spread(apply_all<Relu>(x)) == 0);
}

TEMPLATE_TEST_CASE("Unary functions take special values", "[math]", float, double) {
  using T = TestType;
  const T inf = kInfinity<T>, nan = kNan<T>, tiny = std::numeric_limits<T>::denorm_min();
  const T big = std::numeric_limits<T>::max();
  const double big_log = std::log(static_cast<double>(big));
  // Each value is looked at alone and in a row long enough for vector code.
  auto is = [&]<class Op>(Op, T x, T want) {
    for (const std::vector<T>& y : apply_all<Op>(std::vector<T>(67, x))) {
      for (T value : y) {
        bool same = std::isnan(want) ? std::isnan(value) : value == want && std::signbit(value) == std::signbit(want);
        if (!same) return false;
      }
    }
    return true;
  };
  CHECK(is(Exp{}, T(0), T(1)));
  CHECK(is(Exp{}, T(-0.0), T(1)));
  CHECK(is(Exp{}, inf, inf));
  CHECK(is(Exp{}, -inf, T(0)));
  CHECK(is(Exp{}, nan, nan));
  CHECK(is(Exp{}, static_cast<T>(big_log * 1.001), inf));
  CHECK(is(Exp{}, -big, T(0)));
  CHECK(is(Exp{}, tiny, T(1)));
  CHECK(is(Log{}, T(1), T(0)));
  CHECK(is(Log{}, T(0), -inf));
  CHECK(is(Log{}, T(-0.0), -inf));
  CHECK(is(Log{}, inf, inf));
  CHECK(is(Log{}, T(-1), nan));
  CHECK(is(Log{}, -inf, nan));
  CHECK(is(Log{}, nan, nan));
  CHECK(is(Sin{}, T(-0.0), T(-0.0)));
  CHECK(is(Sin{}, tiny, tiny));
  CHECK(is(Sin{}, inf, nan));
  CHECK(is(Cos{}, T(0), T(1)));
  CHECK(is(Cos{}, nan, nan));
  CHECK(is(Tanh{}, T(-0.0), T(-0.0)));
  CHECK(is(Tanh{}, tiny, tiny));
  CHECK(is(Tanh{}, -tiny, -tiny));
  CHECK(is(Tanh{}, inf, T(1)));
  CHECK(is(Tanh{}, -inf, T(-1)));
  CHECK(is(Tanh{}, -big, T(-1)));
  CHECK(is(Tanh{}, nan, nan));
  CHECK(is(Sigmoid{}, T(0), T(0.5)));
  CHECK(is(Sigmoid{}, inf, T(1)));
  CHECK(is(Sigmoid{}, -inf, T(0)));
  CHECK(is(Sigmoid{}, -big, T(0)));
  CHECK(is(Sigmoid{}, nan, nan));
  CHECK(is(Gelu{}, T(-0.0), T(-0.0)));
  CHECK(is(Gelu{}, inf, inf));
  CHECK(is(Gelu{}, big, big));
  CHECK(is(Gelu{}, nan, nan));
  CHECK(is(Silu{}, inf, inf));
  CHECK(is(Silu{}, nan, nan));
  CHECK(is(Relu{}, nan, nan));
  CHECK(is(Relu{}, -inf, T(0)));
  CHECK(is(Sqrt{}, T(-1), nan));
  CHECK(is(Rsqrt{}, T(0), inf));
  CHECK(is(Reciprocal{}, -inf, T(-0.0)));
  CHECK(is(Abs{}, T(-0.0), T(0)));
  CHECK(is(Sign{}, nan, nan));
  CHECK(is(Sign{}, T(-7), T(-1)));
  CHECK(is(Neg{}, T(0), T(-0.0)));
}

TEST_CASE("Derivatives equal differences", "[math]") {
  auto check = []<class Op>(Op, double lo, double hi) {
    for (int i = 0; i <= 20; ++i) {
      const double x = lo + (hi - lo) * i / 20, h = 1e-5, y = Op::forward(x);
      const double want = (Op::forward(x + h) - Op::forward(x - h)) / (2 * h);
      CAPTURE(x);
      CHECK(Op::backward(3.0, Op::saves == Saves::Output ? y : x) == Approx(3 * want).epsilon(1e-6).margin(1e-8));
    }
  };
#define TANDEM_CASE(Op, name) check(Op{}, 0.3, 2.9);
  TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
  check(Neg{}, -3, -0.1);
  check(Abs{}, -3, -0.1);
  check(Square{}, -3, 3);
  check(Sin{}, -9, 9);
  check(Cos{}, -9, 9);
  check(Tanh{}, -4, 4);
  check(Sigmoid{}, -9, 9);
  check(Relu{}, -3, -0.1);
  check(Gelu{}, -6, 6);
  check(Silu{}, -9, 9);
  CHECK(Abs::backward(5.0, 0.0) == 0);
  CHECK(Relu::backward(5.0, 0.0) == 0);
  CHECK(Sqrt::backward(5.0, 0.0) == kInfinity<double>);
  CHECK(saves_of(UnaryOp::Tanh) == Saves::Output);
  CHECK(saves_of(UnaryOp::Gelu) == Saves::Input);
}

TEST_CASE("Integers wrap around", "[math]") {
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min();
  CHECK(Neg::forward(least) == least);
  CHECK(Abs::forward(least) == least);
  CHECK(Abs::forward(std::uint8_t{200}) == 200);
  CHECK(Neg::forward(std::uint8_t{1}) == 255);
  CHECK(Sign::forward(std::int64_t{-9}) == -1);
  CHECK(Square::forward(std::int64_t{-9}) == 81);
  CHECK(Relu::forward(std::int32_t{-9}) == 0);
  CHECK(Add::forward(std::uint8_t{200}, std::uint8_t{100}) == 44);
  CHECK(Mul::forward(least, least) == 0);
  CHECK(Sub::forward(least, std::int32_t{1}) == std::numeric_limits<std::int32_t>::max());
}

TEST_CASE("Binary functions at the edges", "[math]") {
  const double nan = kNan<double>;
  CHECK(std::isnan(Maximum::forward(nan, 1.0)));
  CHECK(std::isnan(Maximum::forward(1.0, nan)));
  CHECK(std::isnan(Minimum::forward(nan, 1.0)));
  CHECK(std::isnan(Minimum::forward(1.0, nan)));
  CHECK(Maximum::forward(2, 3) == 3);
  CHECK(Minimum::forward(2.0f, 3.0f) == 2.0f);
  CHECK(Add::forward(true, true) == true);
  CHECK(Mul::forward(true, false) == false);
  CHECK(Maximum::forward(true, false) == true);
  CHECK(Minimum::forward(true, false) == false);
  CHECK(Pow::forward(0.0, 0.0) == 1);
  CHECK(Pow::forward(-2.0, 3.0) == -8);
  CHECK(std::isnan(Pow::forward(-2.0, 0.5)));
  CHECK(Pow::forward(std::int64_t{3}, std::int64_t{13}) == 1594323);
  CHECK(Pow::forward(std::int64_t{0}, std::int64_t{0}) == 1);
  CHECK(Pow::forward(-2, 3) == -8);
  CHECK(Pow::forward(-1, -3) == -1);
  CHECK(Pow::forward(2, -1) == 0);
  CHECK(Pow::forward(std::uint8_t{2}, std::uint8_t{9}) == 0);
  const Clamp<double> clamp{-1, 1};
  CHECK(clamp(-5) == -1);
  CHECK(clamp(5) == 1);
  CHECK(std::isnan(clamp(nan)));
  CHECK(math::convert<std::uint8_t>(-1.5) == 255);
  CHECK(math::convert<bool>(0.25f));
  CHECK(math::convert<int>(-2.9) == -2);
  CHECK(MaxOf::better(nan, 1.0));
  CHECK(!MaxOf::better(nan, nan));
  CHECK(!MinOf::better(1.0, nan));
  CHECK(!MinOf::better(1.0, 1.0));
}

TEST_CASE("Philox draws the known answers", "[math]") {
  // From the tests of Random123: counter, key, and the words that they make.
  auto words = [](std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
    const PhiloxBlock b = philox(seed, stream, counter);
    return std::vector<std::uint32_t>(b.word, b.word + 4);
  };
  using Words = std::vector<std::uint32_t>;
  CHECK(words(0, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words(~0ull, ~0ull, ~0ull) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("Random bits become numbers in range", "[math]") {
  CHECK(unit_interval<float>(0) == 0);
  CHECK(unit_interval<float>(~0u) == 1 - 0x1p-24f);
  CHECK(unit_interval<double>(~0ull) == 1 - 0x1p-53);
  CHECK(uniform_between<float>(~0u, 1.0f, std::nextafter(1.0f, 2.0f)) == 1.0f);
  CHECK(integer_between(0, -5, 5) == -5);
  CHECK(integer_between(~0ull, -5, 5) == 4);
  CHECK(integer_between(~0ull, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()) ==
        std::numeric_limits<std::int64_t>::max() - 1);
  CHECK(multiply_high(~0ull, ~0ull) == ~0ull - 1);
  CHECK(multiply_high(0x123456789abcdef0, 0xfedcba9876543210) == 0x121fa00ad77d7422);
  const NormalPair<float> least = normal_pair<float>(0, 0), most = normal_pair<float>(~0u, 0x40000000);
  CHECK(least.first == Approx(std::sqrt(64 * std::log(2.0))));
  CHECK(least.second == 0);
  CHECK(most.second == Approx(0).margin(1e-6));
  const NormalPair<double> quarter = normal_pair<double>(1ull << 63, 1ull << 62);
  CHECK(quarter.first == Approx(0).margin(1e-15));
  CHECK(quarter.second == Approx(std::sqrt(-2 * std::log(0.5))));
}

TEST_CASE("Optimizer updates follow PyTorch's formulas", "[math]") {
  const SgdUpdate<double> sgd{0.1, 0.9, 0.8, 0.01, true, false};
  const double d = sgd.gradient(2, 3), v = sgd.velocity(0.5, d);
  CHECK(d == Approx(3.02));
  CHECK(v == Approx(0.9 * 0.5 + 0.8 * 3.02));
  CHECK(sgd.step(2, d, v) == Approx(2 - 0.1 * (3.02 + 0.9 * v)));
  // The first Adam step moves by lr * g / (|g| + eps).
  const AdamUpdate<double> adam{0.9, 0.999, 0.1, 0.001, 1e-8, 0.1 / 0.1, std::sqrt(0.001), 0, 1};
  double p = 1, m = 0, second = 0;
  adam(p, 4.0, m, second);
  CHECK(p == Approx(0.9));
  CHECK(m == Approx(0.4));
  CHECK(second == Approx(0.016));
}
