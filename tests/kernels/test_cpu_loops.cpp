// Elementwise kernels and copies of the CPU backend against plain loops.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "../../kernels/elementwise_plan.h"
#include "../../kernels/math/binary.h"
#include "../../kernels/math/compare.h"
#include "../../kernels/math/unary.h"
#include "../catch.h"
#include "strided.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

const Backend& cpu = cpu_backend();

constexpr Index kPrime = 131;

}  // namespace

TEST_CASE("Plans have as few loops as can be", "[loops]") {
  Strided<float> flat({4, 5, 6}), row({6}), column({4, 1, 1}), one(Sizes{});
  auto same = plan_elementwise(flat.view(), flat.view(), flat.view());
  CHECK(same.ndim == 1);
  CHECK(same.shape[0] == 120);
  auto scalar = plan_elementwise(flat.view(), one.view());
  CHECK(scalar.ndim == 1);
  CHECK(scalar.strides[0][1] == 0);
  auto rows = plan_elementwise(flat.view(), row.view());
  CHECK(rows.ndim == 2);
  CHECK(rows.shape[0] == 6);
  CHECK(rows.shape[1] == 20);
  CHECK(rows.strides[1][1] == 0);
  auto columns = plan_elementwise(flat.view(), column.view());
  CHECK(columns.ndim == 2);
  CHECK(columns.shape[0] == 30);
  CHECK(columns.strides[0][1] == 0);
  CHECK(columns.strides[1][1] == 1);
  Strided<float> a({4, 5, 6}, Layout::Transposed), b({4, 5, 6}, Layout::Transposed), r({4, 5, 6}, Layout::Reversed);
  CHECK(plan_elementwise(a.view(), b.view()).ndim == 1);
  CHECK(plan_elementwise(a.view(), flat.view()).ndim == 3);
  CHECK(plan_elementwise(r.view(), r.view()).ndim == 1);
  CHECK(plan_elementwise(one.view(), one.view()).numel == 1);
  Strided<float> none({3, 0, 2}), narrow({1, 2});
  CHECK(plan_elementwise(none.view(), narrow.view()).numel == 0);
  Index covered = 0;
  for_each_row(columns, 7, 100, [&](const Index(&)[2], Index n) { covered += n; });
  CHECK(covered == 93);
}

TEMPLATE_TEST_CASE("Unary kernels", "[loops]", float, double, std::int32_t, std::int64_t, std::uint8_t) {
  using T = TestType;
  auto check = [&]<class Op>(Op, UnaryOp op) {
    if constexpr (std::is_floating_point_v<T> || Op::integers) {
      for (const Sizes& sizes : {Sizes{}, Sizes{0}, Sizes{kPrime}, Sizes{5, 1, 7}, Sizes{3, 40, 17}}) {
        for (Layout out_layout : {Layout::Contiguous, Layout::Transposed, Layout::Spaced}) {
          for (Layout in_layout : kLayouts) {
            Strided<T> x(sizes, in_layout), y(sizes, out_layout);
            x.random(1, 0.1, 9);
            Stream stream;
            cpu.unary(stream, op, y.view(), x.view());
            bool good = true;
            for (Index i = 0; i < x.size(); ++i) good &= close(y[i], Op::forward(x[i]));
            CHECK(good);
          }
        }
      }
      Strided<T> x({1000});
      x.random(2);
      std::vector<T> want;
      for (Index i = 0; i < 1000; ++i) want.push_back(Op::forward(x[i]));
      Stream stream;
      cpu.unary(stream, op, x.view(), x.view());
      bool good = true;
      for (Index i = 0; i < 1000; ++i) good &= close(x[i], want[static_cast<std::size_t>(i)]);
      CHECK(good);
    }
  };
#define TANDEM_CASE(Op, name) check(Op{}, UnaryOp::Op);
  TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
}

TEMPLATE_TEST_CASE("Derivatives of unary kernels", "[loops]", float, double) {
  using T = TestType;
  auto check = [&]<class Op>(Op, UnaryOp op) {
    for (Layout g_layout : kLayouts) {
      Strided<T> g({3, 40, 17}, g_layout), saved({3, 40, 17}), y({3, 40, 17});
      g.random(1);
      saved.random(2, 0.1, 3);
      Stream stream;
      cpu.unary_backward(stream, op, y.view(), g.view(), saved.view());
      bool good = true;
      for (Index i = 0; i < g.size(); ++i) good &= close(y[i], Op::backward(g[i], saved[i]));
      CHECK(good);
    }
  };
#define TANDEM_CASE(Op, name) check(Op{}, UnaryOp::Op);
  TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
}

TEST_CASE("Sine and cosine of large numbers are exact too", "[loops]") {
  Strided<double> x({1500}), y({1500}), g({1500});
  for (Index i = 0; i < 1500; ++i)
    x[i] = i % 100 == 99 ? std::ldexp(1.1, static_cast<int>(i % 1000)) : 0.01 * double(i);
  g.random(1);
  Stream stream;
  cpu.unary(stream, UnaryOp::Sin, y.view(), x.view());
  bool good = true;
  for (Index i = 0; i < 1500; ++i) good &= close(y[i], std::sin(x[i]));
  CHECK(good);
  cpu.unary_backward(stream, UnaryOp::Cos, y.view(), g.view(), x.view());
  for (Index i = 0; i < 1500; ++i) good &= close(y[i], -g[i] * std::sin(x[i]));
  CHECK(good);
}

namespace {

/// Every pairing of layouts and of broadcast shapes, for out = f(a, b).
template <class R, class T, class Run, class Formula>
void check_pairs(double lo, double hi, Run run, Formula formula) {
  struct Shapes {
    Sizes out, a, b;
  };
  const Shapes all[] = {{{}, {}, {}},
                        {{0, 3}, {1, 3}, {0, 1}},
                        {{kPrime}, {kPrime}, {1}},
                        {{3, 40, 17}, {3, 40, 17}, {17}},
                        {{3, 40, 17}, {3, 1, 1}, {40, 17}},
                        {{6, 5}, {6, 1}, {1, 5}},
                        {{4, 700}, {4, 700}, {4, 700}}};
  for (const Shapes& shapes : all) {
    for (Layout a_layout : kLayouts) {
      for (Layout b_layout : {Layout::Contiguous, Layout::Transposed, Layout::Repeated}) {
        for (Layout out_layout : {Layout::Contiguous, Layout::Transposed, Layout::Spaced}) {
          Strided<T> a(shapes.a, a_layout), b(shapes.b, b_layout);
          Strided<R> out(shapes.out, out_layout);
          a.random(1, lo, hi);
          b.random(2, lo, hi);
          run(out.view(), a.view(), b.view());
          bool good = true;
          for (Index i = 0; i < out.size(); ++i) {
            good &= close(out[i], formula(a.broadcast(shapes.out, i), b.broadcast(shapes.out, i)));
          }
          CHECK(good);
        }
      }
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("Binary kernels", "[loops]", float, double, std::int32_t, std::int64_t, std::uint8_t, bool) {
  using T = TestType;
  Stream stream;
  auto check = [&]<class Op>(Op, BinaryOp op) {
    if constexpr (std::is_floating_point_v<T> || (std::is_same_v<T, bool> ? Op::booleans : Op::integers)) {
      check_pairs<T, T>(
          0.6, 5, [&](const View& out, const View& a, const View& b) { cpu.binary(stream, op, out, a, b); },
          [](T a, T b) { return Op::forward(a, b); });
      Strided<T> x({200}), y({200}), z({200});
      x.random(3, 0.6, 5);
      cpu.binary(stream, op, y.view(), x.view(), Scalar(2));
      cpu.binary(stream, op, z.view(), Scalar(2), x.view());
      bool good = true;
      for (Index i = 0; i < 200; ++i) good &= close(y[i], Op::forward(x[i], math::convert<T>(2)));
      for (Index i = 0; i < 200; ++i) good &= close(z[i], Op::forward(math::convert<T>(2), x[i]));
      CHECK(good);
    }
  };
#define TANDEM_CASE(Op) check(Op{}, BinaryOp::Op);
  TANDEM_BINARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
}

TEST_CASE("Powers with a short formula equal pow", "[loops]") {
  Strided<double> x({300}), y({300});
  x.random(1, 0.1, 4);
  Stream stream;
  for (double e : {-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 0.0, 1.7}) {
    cpu.binary(stream, BinaryOp::Pow, y.view(), x.view(), Scalar(e));
    bool good = true;
    for (Index i = 0; i < 300; ++i) good &= close(y[i], std::pow(x[i], e));
    CHECK(good);
  }
}

TEMPLATE_TEST_CASE("Comparisons", "[loops]", float, double, std::int32_t, std::int64_t, std::uint8_t, bool) {
  using T = TestType;
  Stream stream;
  auto check = [&]<class Op>(Op, CompareOp op) {
    check_pairs<bool, T>(
        0, 3, [&](const View& out, const View& a, const View& b) { cpu.compare(stream, op, out, a, b); },
        [](T a, T b) { return Op::forward(a, b); });
  };
#define TANDEM_CASE(Op) check(Op{}, CompareOp::Op);
  TANDEM_COMPARE_OPS(TANDEM_CASE)
#undef TANDEM_CASE
  Strided<double> x({3});
  x[0] = std::numeric_limits<double>::quiet_NaN();
  x[1] = 1;
  Strided<bool> y({3});
  cpu.compare(stream, CompareOp::Lt, y.view(), x.view(), Scalar(0.5));
  CHECK((!y[0] && !y[1] && y[2]));
  cpu.compare(stream, CompareOp::Ne, y.view(), x.view(), x.view());
  CHECK((y[0] && !y[1] && !y[2]));
}

TEMPLATE_TEST_CASE("Choice and clamping", "[loops]", float, std::int64_t, std::uint8_t) {
  using T = TestType;
  Stream stream;
  const Sizes sizes{3, 40, 17};
  for (const Sizes& cond_sizes : {sizes, Sizes{17}, Sizes{40, 1}, Sizes{}}) {
    for (Layout cond_layout : kLayouts) {
      for (const Sizes& b_sizes : {sizes, Sizes{1, 17}, Sizes{}}) {
        Strided<bool> cond(cond_sizes, cond_layout);
        for (Index i = 0; i < cond.size(); ++i) cond[i] = i % 3 == 0;
        Strided<T> a(sizes), b(b_sizes), out(sizes), swapped(sizes);
        a.random(1, 0, 9);
        b.random(2, 0, 9);
        cpu.where(stream, out.view(), cond.view(), a.view(), b.view());
        cpu.where(stream, swapped.view(), cond.view(), b.view(), Scalar(7));
        bool good = true;
        for (Index i = 0; i < out.size(); ++i) {
          const bool yes = cond.broadcast(sizes, i);
          good &= out[i] == (yes ? a[i] : b.broadcast(sizes, i));
          good &= swapped[i] == (yes ? b.broadcast(sizes, i) : T(7));
        }
        CHECK(good);
      }
    }
  }
  for (Layout layout : kLayouts) {
    Strided<T> x(sizes, layout), y(sizes);
    x.random(1, 0, 9);
    cpu.clamp(stream, y.view(), x.view(), Scalar(2), Scalar(5));
    bool good = true;
    for (Index i = 0; i < y.size(); ++i) good &= y[i] == std::min(std::max(x[i], T(2)), T(5));
    CHECK(good);
  }
}

TEST_CASE("Copies of every layout", "[loops]") {
  Stream stream;
  for (const Sizes& sizes :
       {Sizes{}, Sizes{0, 4}, Sizes{1000}, Sizes{kPrime, 67}, Sizes{5, 33, 41}, Sizes{2, 3, 35, 40}}) {
    for (Layout in_layout : kLayouts) {
      for (Layout out_layout : {Layout::Contiguous, Layout::Transposed, Layout::Reversed, Layout::Spaced}) {
        Strided<float> x(sizes, in_layout), y(sizes, out_layout);
        Strided<bool> flags(sizes, in_layout), flags_out(sizes, out_layout);
        Strided<double> wide(sizes, out_layout);
        x.random(1);
        flags.random(2, -1, 1);
        cpu.copy(stream, y.view(), x.view());
        cpu.copy(stream, flags_out.view(), flags.view());
        cpu.copy(stream, wide.view(), x.view());
        bool good = true;
        for (Index i = 0; i < x.size(); ++i) {
          good &= y[i] == x[i] && wide[i] == static_cast<double>(x[i]) && flags_out[i] == flags[i];
        }
        CHECK(good);
      }
    }
  }
}

TEST_CASE("A transposition with broadcasting, in many threads", "[loops]") {
  Stream stream = stream_with(3);
  Strided<double> x({1, 517, 301}, Layout::Transposed), y({3, 517, 301});
  x.random(1);
  cpu.copy(stream, y.view(), x.view());
  bool good = true;
  for (Index i = 0; i < y.size(); ++i) good &= y[i] == x.broadcast({3, 517, 301}, i);
  CHECK(good);
}

TEST_CASE("Conversions between all types", "[loops]") {
  Stream stream;
  auto check = [&]<class To, class From>(TypeTag<To>, TypeTag<From>) {
    Strided<From> x({300});
    x.random(1, std::is_unsigned_v<From> ? 0 : -100, 100);
    x[7] = From(0);
    Strided<To> y({300}), spaced({300}, Layout::Spaced);
    cpu.copy(stream, y.view(), x.view());
    cpu.copy(stream, spaced.view(), x.view());
    bool good = true;
    for (Index i = 0; i < 300; ++i) good &= y[i] == math::convert<To>(x[i]) && spaced[i] == y[i];
    CHECK(good);
  };
  for (int to = 0; to < kDTypeCount; ++to) {
    for (int from = 0; from < kDTypeCount; ++from) {
      visit_dtype(static_cast<DType>(to), [&](auto to_tag) {
        visit_dtype(static_cast<DType>(from), [&](auto from_tag) { check(to_tag, from_tag); });
      });
    }
  }
}

TEMPLATE_TEST_CASE("Fill and arange", "[loops]", float, double, std::int32_t, std::int64_t, std::uint8_t) {
  using T = TestType;
  Stream stream;
  for (Layout layout : {Layout::Contiguous, Layout::Transposed, Layout::Spaced}) {
    Strided<T> x({13, 29}, layout);
    cpu.fill(stream, x.view(), Scalar(3.7));
    bool good = true;
    for (Index i = 0; i < x.size(); ++i) good &= x[i] == static_cast<T>(3.7);
    CHECK(good);
  }
  for (Layout layout : {Layout::Contiguous, Layout::Reversed, Layout::Spaced}) {
    Strided<T> x({100}, layout);
    cpu.arange(stream, x.view(), Scalar(5), Scalar(2));
    bool good = true;
    for (Index i = 0; i < 100; ++i) good &= x[i] == static_cast<T>(5 + 2 * i);
    CHECK(good);
  }
  Strided<double> fine({11});
  cpu.arange(stream, fine.view(), Scalar(-1.0), Scalar(0.2));
  CHECK(fine[10] == Approx(1));
  Strided<std::int64_t> big({2});
  cpu.arange(stream, big.view(), Scalar((std::int64_t{1} << 62) + 1), Scalar(1));
  CHECK(big[1] == (std::int64_t{1} << 62) + 2);
}

TEST_CASE("Elementwise results do not depend on the number of threads", "[loops]") {
  Strided<float> x({700, 1001}), one({700, 1001}), many({700, 1001});
  x.random(1);
  Stream single = stream_with(1), team = stream_with(4);
  cpu.unary(single, UnaryOp::Gelu, one.view(), x.view());
  cpu.unary(team, UnaryOp::Gelu, many.view(), x.view());
  bool good = true;
  for (Index i = 0; i < x.size(); ++i) good &= one[i] == many[i];
  CHECK(good);
}
