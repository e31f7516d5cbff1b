// Reductions, random numbers and optimizer updates of the CPU backend against plain loops.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "../../kernels/math/optim.h"
#include "../../kernels/math/philox.h"
#include "../../kernels/math/reduce.h"
#include "../../kernels/reduce_plan.h"
#include "../catch.h"
#include "strided.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

const Backend& cpu = cpu_backend();

/// `sizes` with 1 in the dimensions whose bit is set.
Sizes reduced(Sizes sizes, unsigned dims) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if ((dims >> d) & 1) sizes[d] = 1;
  }
  return sizes;
}

/// The plain reduction, in row-major order.
template <class Op, class T>
auto plain(Strided<T>& in, const Sizes& out_sizes) {
  using A = typename Op::template Accumulator<T>;
  Strided<A> sums(out_sizes);
  for (Index i = 0; i < sums.size(); ++i) sums[i] = Op::template start<T>();
  for (Index i = 0; i < in.size(); ++i) {
    A& sum = sums.broadcast(in.shape(), i);
    sum = Op::combine(sum, static_cast<A>(in[i]));
  }
  return sums;
}

template <class Op, class T>
void check_reduce(ReduceOp op, const Sizes& sizes, Layout layout, Layout out_layout, int threads = 1) {
  using R = typename Op::template Result<T>;
  for (unsigned dims = 0; dims < (1u << sizes.size()); ++dims) {
    const Sizes out_sizes = reduced(sizes, dims);
    Strided<T> in(sizes, layout);
    in.random(dims, std::is_unsigned_v<T> ? 0 : -4, 4);
    if constexpr (std::is_floating_point_v<T>) {
      for (Index i = 0; i < in.size(); ++i) in[i] = std::floor(in[i] * 8) / 8;  // so that sums are exact
    }
    Strided<R> out(out_sizes, out_layout);
    Stream stream = stream_with(threads);
    cpu.reduce(stream, op, out.view(), in.view());
    auto want = plain<Op>(in, out_sizes);
    bool good = true;
    for (Index i = 0; i < out.size(); ++i) good &= close(out[i], static_cast<R>(want[i]));
    CAPTURE(dims);
    CHECK(good);
  }
}

/// The same bits with one thread and with several.
template <class T>
bool same_in_threads(const Sizes& sizes, unsigned dims) {
  Strided<T> in(sizes);
  in.random(1);
  const Sizes out_sizes = reduced(sizes, dims);
  Strided<T> one(out_sizes), many(out_sizes);
  Stream single = stream_with(1), team = stream_with(4);
  cpu.reduce(single, ReduceOp::Sum, one.view(), in.view());
  cpu.reduce(team, ReduceOp::Sum, many.view(), in.view());
  auto want = plain<SumOf>(in, out_sizes);
  bool good = true;
  for (Index i = 0; i < one.size(); ++i) {
    good &= one[i] == many[i];
    good &= std::abs(static_cast<double>(one[i]) - want[i]) <= 1e-6 * (1 + std::abs(want[i]));
  }
  return good;
}

}  // namespace

TEST_CASE("Reduction plans join dimensions", "[reduce]") {
  Strided<float> in({4, 5, 6, 7}), channels({1, 5, 1, 1}), rows({4, 5, 6, 1}), all({1, 1, 1, 1});
  auto plan = plan_reduce(in.view(), channels.view());
  CHECK(plan.kept.ndim == 1);
  CHECK(plan.reduced.ndim == 2);
  CHECK(plan.reduced.shape[0] == 42);
  CHECK(!plan.by_columns());
  CHECK(plan_reduce(in.view(), rows.view()).kept.ndim == 1);
  CHECK(plan_reduce(in.view(), all.view()).reduced.shape[0] == 840);
}

TEMPLATE_TEST_CASE("Reductions over any dimensions", "[reduce]", float, double, std::int32_t, std::int64_t,
                   std::uint8_t, bool) {
  using T = TestType;
  for (const Sizes& sizes : {Sizes{}, Sizes{300}, Sizes{7, 130}, Sizes{130, 3}, Sizes{5, 33, 9}, Sizes{2, 6, 5, 70}}) {
    for (Layout layout : kLayouts) {
      for (Layout out_layout : {Layout::Contiguous, Layout::Transposed, Layout::Spaced}) {
        check_reduce<SumOf, T>(ReduceOp::Sum, sizes, layout, out_layout);
        check_reduce<MaxOf, T>(ReduceOp::Max, sizes, layout, out_layout);
        check_reduce<MinOf, T>(ReduceOp::Min, sizes, layout, out_layout);
      }
    }
  }
}

TEST_CASE("Large reductions over any dimensions", "[reduce]") {
  for (Layout layout : {Layout::Contiguous, Layout::Transposed, Layout::Reversed}) {
    check_reduce<SumOf, double>(ReduceOp::Sum, {40, 60, 130}, layout, Layout::Contiguous, 3);
    check_reduce<MaxOf, float>(ReduceOp::Max, {40, 60, 130}, layout, Layout::Contiguous, 3);
    check_reduce<SumOf, std::int32_t>(ReduceOp::Sum, {600, 700}, layout, Layout::Contiguous, 3);
  }
}

TEST_CASE("Empty reductions", "[reduce]") {
  Stream stream;
  Strided<float> in({3, 0, 4}), out({3, 1, 4}), none({1, 0, 4});
  out.random(1);
  cpu.reduce(stream, ReduceOp::Sum, out.view(), in.view());
  bool zero = true;
  for (Index i = 0; i < out.size(); ++i) zero &= out[i] == 0;
  CHECK(zero);
  cpu.reduce(stream, ReduceOp::Sum, none.view(), in.view());
  Strided<float> empty({0}), total({1});
  total[0] = 5;
  cpu.reduce(stream, ReduceOp::Sum, total.view(), empty.view());
  CHECK(total[0] == 0);
}

TEST_CASE("Sums are accurate", "[reduce]") {
  Stream stream = stream_with(2);
  const Index n = (Index{1} << 24) + 2;
  Strided<float> one(Sizes{1}), total({1}), column({1, 1});
  one[0] = 1;
  const Index zero_stride[2] = {0, 0}, sizes[2] = {n, 1};
  cpu.reduce(stream, ReduceOp::Sum, total.view(), {one.view().data, sizes, zero_stride, 1, kFloat32});
  CHECK(total[0] == 16777218.0f);
  std::vector<float> ones(static_cast<std::size_t>(n), 1.0f);
  const Index unit[2] = {1, 1}, rows[2] = {n / 2, 2}, row_strides[2] = {2, 1};
  cpu.reduce(stream, ReduceOp::Sum, total.view(), {ones.data(), sizes, unit, 1, kFloat32});
  CHECK(total[0] == 16777218.0f);
  Strided<float> pair({1, 2});
  cpu.reduce(stream, ReduceOp::Sum, pair.view(), {ones.data(), rows, row_strides, 2, kFloat32});
  CHECK(pair[0] == static_cast<float>(n / 2));
  CHECK(pair[1] == static_cast<float>(n / 2));

  Strided<float> offset({3000, 100}), sum({1, 100}), all({1, 1});
  offset.random(3, 1e8, 1e8 + 1000);
  double exact = 0;
  for (Index i = 0; i < offset.size(); ++i) exact += static_cast<double>(offset[i]);
  cpu.reduce(stream, ReduceOp::Sum, all.view(), offset.view());
  CHECK(static_cast<double>(all[0]) == Approx(exact).epsilon(1e-7));
  cpu.reduce(stream, ReduceOp::Sum, sum.view(), offset.view());
  double columns = 0;
  for (Index j = 0; j < 100; ++j) columns += static_cast<double>(sum[j]);
  CHECK(columns == Approx(exact).epsilon(1e-7));
}

TEST_CASE("Sums do not depend on the number of threads", "[reduce]") {
  CHECK(same_in_threads<float>({3000000}, 1));
  CHECK(same_in_threads<float>({3, 700001}, 2));
  CHECK(same_in_threads<float>({500, 3001}, 2));
  CHECK(same_in_threads<float>({300001, 10}, 1));
  CHECK(same_in_threads<float>({1003, 2049}, 1));
  CHECK(same_in_threads<double>({1003, 2049}, 1));
  CHECK(same_in_threads<float>({16, 130, 31, 33}, 0b1101));
  CHECK(same_in_threads<float>({40, 130, 133}, 0b010));
}

TEST_CASE("NaN wins in extremes", "[reduce]") {
  Stream stream;
  for (Index at : {0, 5, 77, 4999}) {
    Strided<float> x({5000}), top({1});
    x.random(1);
    x[at] = std::numeric_limits<float>::quiet_NaN();
    cpu.reduce(stream, ReduceOp::Max, top.view(), x.view());
    CHECK(std::isnan(top[0]));
    cpu.reduce(stream, ReduceOp::Min, top.view(), x.view());
    CHECK(std::isnan(top[0]));
  }
  Strided<double> low({100}), top({1});
  for (Index i = 0; i < 100; ++i) low[i] = -std::numeric_limits<double>::infinity();
  cpu.reduce(stream, ReduceOp::Max, top.view(), low.view());
  CHECK(top[0] == -std::numeric_limits<double>::infinity());
}

TEMPLATE_TEST_CASE("Extremes with their places", "[reduce]", float, double, std::int32_t, std::uint8_t, bool) {
  using T = TestType;
  Stream stream = stream_with(2);
  auto check = [&]<class Op>(Op, ReduceOp op) {
    for (const Sizes& sizes : {Sizes{90}, Sizes{7, 130}, Sizes{130, 3}, Sizes{5, 33, 9}, Sizes{40, 3, 1100}}) {
      for (Layout layout : kLayouts) {
        for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
          const Sizes out_sizes = reduced(sizes, 1u << dim);
          Strided<T> in(sizes, layout), values(out_sizes);
          Strided<Index> places(out_sizes, Layout::Transposed), want(out_sizes);
          in.random(1, 0, 4);
          for (Index i = 0; i < in.size(); ++i) in[i] = math::convert<T>(std::floor(static_cast<double>(in[i])));
          if (std::numeric_limits<T>::has_quiet_NaN && layout != Layout::Repeated) {
            for (Index i = 11; i < in.size(); i += 57) in[i] = std::numeric_limits<T>::quiet_NaN();
          }
          cpu.reduce_index(stream, op, values.view(), places.view(), in.view(), static_cast<int>(dim));
          Index inner = 1;
          for (std::size_t d = dim + 1; d < sizes.size(); ++d) inner *= sizes[d];
          bool good = true;
          for (Index i = 0; i < want.size(); ++i) {
            const Index first = i / inner * inner * sizes[dim] + i % inner;
            Index best = 0;
            for (Index r = 1; r < sizes[dim]; ++r) {
              if (Op::better(in[first + r * inner], in[first + best * inner])) best = r;
            }
            good &= places[i] == best && close(values[i], in[first + best * inner]);
          }
          CHECK(good);
        }
      }
    }
  };
  check(MaxOf{}, ReduceOp::Max);
  check(MinOf{}, ReduceOp::Min);
}

TEMPLATE_TEST_CASE("Uniform and normal numbers are what philox.h says", "[random]", float, double) {
  using T = TestType;
  using Bits = RandomBits<T>;
  const PhiloxState state{0x123456789abcdefull, 3, (std::uint64_t{1} << 32) - 5};
  constexpr Index per_block = 16 / sizeof(T);
  auto bits = [&](Index i) -> Bits {
    const PhiloxBlock b = philox(state.seed, state.stream, state.offset + static_cast<std::uint64_t>(i / per_block));
    if constexpr (sizeof(T) == 4) return b.word[i % 4];
    return static_cast<Bits>(join_words(b.word[i % 2 * 2], b.word[i % 2 * 2 + 1]));
  };
  for (Index n : {0, 1, 2, 3, 5, 1000, 300001}) {
    Strided<T> x({n}), z({n}), again({n});
    Stream one = stream_with(1), team = stream_with(4);
    cpu.uniform(one, x.view(), state, -1, 3);
    cpu.uniform(team, again.view(), state, -1, 3);
    cpu.normal(team, z.view(), state, 2, 0.5);
    bool good = true;
    for (Index i = 0; i < n; ++i) {
      good &= x[i] == again[i] && x[i] == uniform_between<T>(bits(i), T(-1), T(3)) && x[i] >= -1 && x[i] < 3;
      const NormalPair<T> pair = normal_pair<T>(bits(i / 2 * 2), bits(i / 2 * 2 + 1));
      good &= close(z[i], T(2) + T(0.5) * (i % 2 == 0 ? pair.first : pair.second));
    }
    CHECK(good);
  }
  const Index n = 400000;
  Strided<T> x({n}), z({n});
  Stream stream;
  cpu.uniform(stream, x.view(), state, 0, 1);
  cpu.normal(stream, z.view(), state, 0, 1);
  double mean = 0, square = 0, fourth = 0, uniform_mean = 0, uniform_square = 0;
  for (Index i = 0; i < n; ++i) {
    const double v = static_cast<double>(z[i]), u = static_cast<double>(x[i]);
    mean += v / n;
    square += v * v / n;
    fourth += v * v * v * v / n;
    uniform_mean += u / n;
    uniform_square += u * u / n;
  }
  CHECK(mean == Approx(0).margin(0.01));
  CHECK(square == Approx(1).margin(0.01));
  CHECK(fourth == Approx(3).margin(0.1));
  CHECK(uniform_mean == Approx(0.5).margin(0.002));
  CHECK(uniform_square == Approx(1.0 / 3).margin(0.002));
}

TEMPLATE_TEST_CASE("Random integers", "[random]", std::uint8_t, std::int32_t, std::int64_t, float, bool) {
  using T = TestType;
  const PhiloxState state{42, 0, 7};
  const Index hi = std::is_same_v<T, bool> ? 2 : 10, lo = std::is_unsigned_v<T> ? 0 : -3;
  Strided<T> x({100001});
  Stream stream = stream_with(2);
  cpu.randint(stream, x.view(), state, lo, hi);
  std::vector<int> counts(static_cast<std::size_t>(hi - lo));
  bool good = true;
  for (Index i = 0; i < x.size(); ++i) {
    const PhiloxBlock b = philox(state.seed, state.stream, state.offset + static_cast<std::uint64_t>(i / 2));
    const Index want = integer_between(join_words(b.word[i % 2 * 2], b.word[i % 2 * 2 + 1]), lo, hi);
    good &= x[i] == static_cast<T>(want) && want >= lo && want < hi;
    ++counts[static_cast<std::size_t>(want - lo)];
  }
  CHECK(good);
  for (int count : counts) CHECK(count == Approx(100001.0 / static_cast<double>(hi - lo)).epsilon(0.05));
}

TEMPLATE_TEST_CASE("Dropout", "[random]", float, double) {
  using T = TestType;
  Stream stream = stream_with(2);
  for (double p : {0.0, 0.3, 1.0}) {
    Strided<T> x({100003}), y({100003});
    Strided<bool> mask({100003});
    x.random(1);
    cpu.dropout(stream, y.view(), mask.view(), x.view(), {9, 1, 5}, p);
    Index kept = 0;
    bool good = true;
    for (Index i = 0; i < x.size(); ++i) {
      kept += mask[i] ? 1 : 0;
      good &= close(y[i], mask[i] ? static_cast<T>(static_cast<double>(x[i]) / (1 - p)) : T(0));
    }
    CHECK(good);
    CHECK(static_cast<double>(kept) == Approx(100003 * (1 - p)).epsilon(0.02));
  }
}

namespace {

/// With every `skip`, draw(out, state) gives what it gives without, less the first elements.
template <class T, class Draw>
void check_skips(Index per_block, const Draw& draw) {
  for (Index skip = 0; skip < per_block; ++skip) {
    for (Index n : {0, 1, 2, 3, 4, 5, 254, 255, 256, 300001}) {
      CAPTURE(skip, n, name_of(dtype_of<T>()));
      Strided<T> whole({skip + n}), tail({n});
      draw(whole.view(), PhiloxState{11, 2, 5});
      draw(tail.view(), PhiloxState{11, 2, 5, skip});
      bool good = true;
      for (Index i = 0; i < n; ++i) good &= tail[i] == whole[skip + i];
      CHECK(good);
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("Floating draws that skip", "[random]", float, double) {
  using T = TestType;
  constexpr Index per_block = 16 / sizeof(T);
  Stream stream = stream_with(2);
  check_skips<T>(per_block, [&](const View& out, PhiloxState state) { cpu.uniform(stream, out, state, -1, 3); });
  check_skips<T>(per_block, [&](const View& out, PhiloxState state) { cpu.normal(stream, out, state, 2, 0.5); });
  check_skips<T>(4, [&](const View& out, PhiloxState state) {
    Strided<T> ones({out.numel()});
    Strided<bool> mask({out.numel()});
    for (Index i = 0; i < ones.size(); ++i) ones[i] = 1;
    cpu.dropout(stream, out, mask.view(), ones.view(), state, 0.4);
    bool good = true;
    for (Index i = 0; i < ones.size(); ++i) good &= mask[i] == (out.as<T>()[i] != 0);
    CHECK(good);
  });
}

TEMPLATE_TEST_CASE("Integer draws that skip", "[random]", std::uint8_t, std::int32_t, std::int64_t, float, double,
                   bool) {
  Stream stream = stream_with(2);
  check_skips<TestType>(2, [&](const View& out, PhiloxState state) { cpu.randint(stream, out, state, 0, 2); });
  if (std::is_same_v<TestType, bool>) return;
  check_skips<TestType>(2, [&](const View& out, PhiloxState state) { cpu.randint(stream, out, state, 0, 200); });
}

TEMPLATE_TEST_CASE("Optimizer steps", "[optim]", float, double) {
  using T = TestType;
  Stream stream = stream_with(2);
  const Index n = 300001;
  for (double momentum : {0.0, 0.9}) {
    for (bool nesterov : {false, true}) {
      Strided<T> p({n}), g({n}), v({n});
      p.random(1);
      g.random(2);
      for (Index i = 0; i < n; ++i) v[i] = std::numeric_limits<T>::quiet_NaN();
      std::vector<double> want_p(static_cast<std::size_t>(n)), want_v(want_p);
      for (Index i = 0; i < n; ++i) want_p[static_cast<std::size_t>(i)] = static_cast<double>(p[i]);
      bool good = true;
      for (bool first : {true, false}) {
        cpu.sgd_step(stream, p.view(), g.view(), v.view(), {0.1, momentum, 0.2, 0.01, nesterov, first});
        for (Index i = 0; i < n; ++i) {
          double &wp = want_p[static_cast<std::size_t>(i)], &wv = want_v[static_cast<std::size_t>(i)];
          const double d = static_cast<double>(g[i]) + 0.01 * wp;
          wv = first ? d : momentum * wv + (1 - 0.2) * d;
          wp -= 0.1 * (momentum == 0 ? d : nesterov ? d + momentum * wv : wv);
          good &= close(p[i], static_cast<T>(wp));
        }
      }
      CHECK(good);
    }
  }
  for (bool decoupled : {false, true}) {
    Strided<T> p({n}), g({n}), m({n}), v({n});
    p.random(1);
    g.random(2);
    std::vector<double> want_p(static_cast<std::size_t>(n)), want_m(want_p), want_v(want_p);
    for (Index i = 0; i < n; ++i) want_p[static_cast<std::size_t>(i)] = static_cast<double>(p[i]);
    bool good = true;
    for (int step = 1; step <= 3; ++step) {
      cpu.adam_step(stream, p.view(), g.view(), m.view(), v.view(), {1e-2, 0.9, 0.99, 1e-8, 0.1, step, decoupled});
      for (Index i = 0; i < n; ++i) {
        const auto k = static_cast<std::size_t>(i);
        if (decoupled) want_p[k] *= 1 - 1e-2 * 0.1;
        const double d = static_cast<double>(g[i]) + (decoupled ? 0 : 0.1 * want_p[k]);
        want_m[k] = 0.9 * want_m[k] + (1 - 0.9) * d;
        want_v[k] = 0.99 * want_v[k] + (1 - 0.99) * d * d;
        const double m_hat = want_m[k] / (1 - std::pow(0.9, step)), v_hat = want_v[k] / (1 - std::pow(0.99, step));
        want_p[k] -= 1e-2 * m_hat / (std::sqrt(v_hat) + 1e-8);
        good &= std::abs(static_cast<double>(p[i]) - want_p[k]) < 1e3 * std::numeric_limits<T>::epsilon();
      }
    }
    CHECK(good);
  }
}
