// Elementwise operations, copies and optimizers of CUDA devices against the CPU backend.

#include "../../kernels/math/unary.h"
#include "../catch.h"
#include "../tolerance.h"
#include "twin.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

/// Of up to four roundings each: the CPU may fuse a * b + c, the device does not.
template <class T>
const double kTolerance = 4 * test::device_tolerance<T>();

const Sizes kShapes[] = {{1000}, {7, 33}, {0, 4}, {3, 1, 5, 2}, {}, {2, 1, 2, 1, 2, 3, 1, 2}};
/// Too large for one sweep of the largest grid.
const Sizes kLarge = {4096 * 256 * 4 + 5};

/// Calls f(backend, stream, out, inputs) for both backends and compares what is in `out`.
template <class T, class F, class... In>
void compare(Twin<T>& out, F f, In&... in) {
  Stream here, there = device_stream();
  const View device_out = out.gpu();
  const std::vector<View> device_in = {in.gpu()...};  // before the CPU changes any of them
  f(cpu_backend(), here, out.cpu(), std::vector<View>{in.cpu()...});
  f(cuda_backend(), there, device_out, device_in);
  CHECK(out.distance() <= kTolerance<T>);
}

}  // namespace

TEMPLATE_TEST_CASE("CUDA unary ops and their derivatives", "[cuda]", float, double) {
  using T = TestType;
  for (const Sizes& sizes : kShapes) {
    for (const Layout layout : kLayouts) {
      CAPTURE(sizes, static_cast<int>(layout));
      Twin<T> x(sizes, layout), g(sizes, layout);
      x.normal(1, 1.5, 1), g.normal(2);
      if (x.size() > 3) x.set(0, 1e8).set(1, NAN).set(2, -0.0).set(3, INFINITY);
#define TANDEM_CASE(Op, name)                                                                             \
  {                                                                                                       \
    INFO(#name);                                                                                          \
    Twin<T> y(sizes), gx(sizes, layout);                                                                  \
    compare(                                                                                              \
        y, [](auto& b, Stream& s, const View& out, auto in) { b.unary(s, UnaryOp::Op, out, in[0]); }, x); \
    const auto backward = [](auto& b, Stream& s, const View& out, auto in) {                              \
      b.unary_backward(s, UnaryOp::Op, out, in[0], Op::saves == Saves::Nothing ? View{} : in[1]);         \
    };                                                                                                    \
    compare(gx, backward, g, x);                                                                          \
  }
      TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  }
}

TEMPLATE_TEST_CASE("CUDA binary ops, comparisons and choices", "[cuda]", float, double, Index, std::int32_t,
                   std::uint8_t) {
  using T = TestType;
  const std::pair<Sizes, Sizes> operands[] = {{{9, 37}, {9, 37}}, {{9, 37}, {37}}, {{9, 1}, {9, 37}},
                                              {{}, {9, 37}},      {{9, 37}, {}},   {{1, 37}, {9, 1}}};
  for (const auto& [left, right] : operands) {
    for (const Layout layout : kLayouts) {
      CAPTURE(left, right, static_cast<int>(layout));
      Twin<T> x(left, layout), y(right), out({9, 37}, layout);
      x.eighths(1, 0, 5), y.eighths(2, 0, 5);
#define TANDEM_CASE(Op)                                                                                              \
  if (BinaryOp::Op != BinaryOp::Div || std::is_floating_point_v<T>) {                                                \
    INFO(#Op);                                                                                                       \
    const auto all = [](auto& b, Stream& s, const View& o, auto in) {                                                \
      b.binary(s, BinaryOp::Op, o, in[0], in[1]);                                                                    \
      b.binary(s, BinaryOp::Op, o, o, Scalar(2)); /* in place */                                                     \
      b.binary(s, BinaryOp::Op, o, Scalar(3), o);                                                                    \
    };                                                                                                               \
    const auto one = [](auto& b, Stream& s, const View& o, auto in) { b.binary(s, BinaryOp::Op, o, in[0], in[1]); }; \
    if (BinaryOp::Op == BinaryOp::Pow)                                                                               \
      compare(out, one, x, y);                                                                                       \
    else                                                                                                             \
      compare(out, all, x, y);                                                                                       \
  }
      TANDEM_BINARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
      Twin<bool> truth({9, 37}, layout);
#define TANDEM_CASE(Op)                                                                                              \
  {                                                                                                                  \
    INFO(#Op);                                                                                                       \
    const auto f = [](auto& b, Stream& s, const View& o, auto in) { b.compare(s, CompareOp::Op, o, in[0], in[1]); }; \
    compare(truth, f, x, y);                                                                                         \
    const auto with_number = [](auto& b, Stream& s, const View& o, auto in) {                                        \
      b.compare(s, CompareOp::Op, o, Scalar(2), in[1]);                                                              \
    };                                                                                                               \
    compare(truth, with_number, x, y);                                                                               \
  }
      TANDEM_COMPARE_OPS(TANDEM_CASE)
#undef TANDEM_CASE
      Twin<bool> condition({9, 37}, layout);
      condition.eighths(3);
      const auto choose = [](auto& b, Stream& s, const View& o, auto in) { b.where(s, o, in[2], in[0], in[1]); };
      compare(out, choose, x, y, condition);
      const auto number = [](auto& b, Stream& s, const View& o, auto in) { b.where(s, o, in[1], Scalar(7), in[0]); };
      compare(out, number, y, condition);
      const auto clamp = [](auto& b, Stream& s, const View& o, auto in) { b.clamp(s, o, in[0], Scalar(1), Scalar(2)); };
      compare(out, clamp, x);
    }
  }
}

TEMPLATE_TEST_CASE("CUDA powers with a number", "[cuda]", float, double) {
  using T = TestType;
  Twin<T> x({5, 41});
  x.uniform(1, 0.25, 3);
  for (const double exponent : {-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 2.5, -3.0}) {
    CAPTURE(exponent);
    Twin<T> out({5, 41});
    const auto f = [=](auto& b, Stream& s, const View& o, auto in) {
      b.binary(s, BinaryOp::Pow, o, in[0], Scalar(exponent));
    };
    compare(out, f, x);
  }
}

TEMPLATE_TEST_CASE("CUDA copies and casts", "[cuda]", bool, std::uint8_t, std::int32_t, Index, float, double) {
  using T = TestType;
  const auto copy = [](auto& b, Stream& s, const View& o, auto in) { b.copy(s, o, in[0]); };
  for (const Sizes& sizes : {Sizes{5, 6, 7}, Sizes{70, 130}, Sizes{0, 3}, Sizes{}}) {
    for (const Layout layout : {Layout::Contiguous, Layout::Shifted, Layout::Transposed, Layout::Reversed,
                                Layout::Spaced, Layout::Repeated}) {
      for (const Layout out_layout : {Layout::Contiguous, Layout::Transposed, Layout::Spaced}) {
        CAPTURE(sizes, static_cast<int>(layout), static_cast<int>(out_layout));
        Twin<T> same(sizes, layout), out(sizes, out_layout);
        compare(out, copy, same.eighths(1));
        Twin<double> wide(sizes, layout);
        compare(out, copy, wide.eighths(2, 0, 100));
        Twin<Index> whole(sizes, layout);
        compare(out, copy, whole.eighths(3));
      }
    }
  }
}

TEMPLATE_TEST_CASE("CUDA fills and ranges", "[cuda]", std::uint8_t, Index, float, double) {
  using T = TestType;
  for (const Layout layout : {Layout::Contiguous, Layout::Shifted, Layout::Reversed, Layout::Spaced}) {
    Twin<T> out({301}, layout);
    compare(out, [](auto& b, Stream& s, const View& o, auto) { b.fill(s, o, 7); });
    compare(out, [](auto& b, Stream& s, const View& o, auto) { b.arange(s, o, 3, 2); });
  }
}

TEST_CASE("CUDA elementwise ops go round the grid", "[cuda]") {
  Twin<float> x(kLarge), y(kLarge);
  x.eighths(1);
  compare(
      y, [](auto& b, Stream& s, const View& o, auto in) { b.binary(s, BinaryOp::Add, o, in[0], Scalar(1)); }, x);
  CHECK(y.same());
}

TEMPLATE_TEST_CASE("CUDA optimizers", "[cuda]", float, double) {
  using T = TestType;
  const auto state = [](Index n, Layout layout, unsigned seed) {
    Twin<T> x({n}, layout);
    return std::move(x.uniform(seed, 0.125, 2));
  };
  for (const Index n : {0, 1, 1001}) {
    for (const Layout layout : {Layout::Contiguous, Layout::Shifted}) {
      for (const bool flag : {true, false}) {
        CAPTURE(n, static_cast<int>(layout), flag);
        Twin<T> p = state(n, layout, 1), g = state(n, layout, 2), m = state(n, layout, 3), v = state(n, layout, 4);
        const auto sgd = [=](auto& b, Stream& s, const View& o, auto in) {
          b.sgd_step(s, o, in[0], in[1], {0.1, 0.9, 0.1, 0.01, flag, flag});
          b.sgd_step(s, o, in[0], {}, {0.1, 0, 0, 0.01, flag, flag});
        };
        compare(p, sgd, g, m);
        CHECK(m.distance() <= kTolerance<T>);
        Twin<T> q = state(n, layout, 5), first = state(n, layout, 6);
        const auto adam = [=](auto& b, Stream& s, const View& o, auto in) {
          b.adam_step(s, o, in[0], in[1], in[2], {0.1, 0.9, 0.999, 1e-8, 0.01, 3, flag});
        };
        compare(q, adam, g, first, v);
        CHECK(first.distance() <= kTolerance<T>);
        CHECK(v.distance() <= kTolerance<T>);
      }
    }
  }
}
