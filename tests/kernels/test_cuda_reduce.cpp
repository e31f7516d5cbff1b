// Reductions, softmax, cross entropy and normalisation of CUDA devices against the CPU backend.
//
// Exact: extremes and their places, sums of integers, and floating sums whose terms make every order exact. Other
// floating results differ in the order of sums and in fused multiply-adds; tolerance.h states how far.

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../catch.h"
#include "../tolerance.h"
#include "twin.h"

using namespace tandem;
using namespace tandem::kernels;
using tandem::test::device_tolerance;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Those that only inputs may have, too.
constexpr Layout kInLayouts[] = {Layout::Contiguous, Layout::Shifted, Layout::Transposed,
                                 Layout::Reversed,   Layout::Spaced,  Layout::Repeated};
/// For outputs.
constexpr Layout kOutLayouts[] = {Layout::Contiguous, Layout::Transposed, Layout::Spaced};

Sizes reduced(Sizes sizes, unsigned dims) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if ((dims >> d) & 1) sizes[d] = 1;
  }
  return sizes;
}

template <class T>
using SumType = std::conditional_t<std::is_floating_point_v<T>, T, Index>;

const Backend& cpu = cpu_backend();
const Backend& gpu = cuda_backend();

/// Both backends' reduction, after `change` of the input.
template <class T, class R, class Change>
bool agree(ReduceOp op, const Sizes& sizes, unsigned dims, Layout layout, Layout out_layout, Change change) {
  Stream here, there = device_stream();
  Twin<T> in(sizes, layout);
  change(in.eighths(dims + 1));
  Twin<R> out(reduced(sizes, dims), out_layout);
  const View device_out = out.gpu();
  cpu.reduce(here, op, out.cpu(), in.cpu());
  gpu.reduce(there, op, device_out, in.gpu());
  return out.same();
}

template <class T>
bool agree(const Sizes& sizes, unsigned dims, Layout layout = Layout::Contiguous,
           Layout out_layout = Layout::Contiguous) {
  const auto as_is = [](Twin<T>&) {};
  return agree<T, SumType<T>>(ReduceOp::Sum, sizes, dims, layout, out_layout, as_is) &&
         agree<T, T>(ReduceOp::Max, sizes, dims, layout, out_layout, as_is) &&
         agree<T, T>(ReduceOp::Min, sizes, dims, layout, out_layout, as_is);
}

template <class T>
bool agree_on_index(ReduceOp op, const Sizes& sizes, int dim, Layout layout, double special = 0) {
  Stream here, there = device_stream();
  Twin<T> in(sizes, layout);
  in.eighths(3);
  for (Index i = 5; special != 0 && i < in.size(); i += 41) in.set(i, special);
  const Sizes out_sizes = reduced(sizes, 1u << dim);
  Twin<T> values(out_sizes, Layout::Spaced);
  Twin<Index> places(out_sizes, Layout::Transposed);
  const View device_values = values.gpu(), device_places = places.gpu();
  cpu.reduce_index(here, op, values.cpu(), places.cpu(), in.cpu(), dim);
  gpu.reduce_index(there, op, device_values, device_places, in.gpu(), dim);
  return values.same() && places.same();
}

/// Forward and backward along the middle of (outer, c, inner).
template <class T>
void check_softmax(Index outer, Index c, Index inner, Layout layout = Layout::Contiguous) {
  CAPTURE(outer, c, inner);
  Stream here, there = device_stream();
  for (bool log : {false, true}) {
    Twin<T> x({outer, c, inner}, layout), g({outer, c, inner}, layout), y({outer, c, inner}), gx({outer, c, inner});
    x.normal(1, 0, 3), g.normal(2);
    const View device_y = y.gpu(), device_gx = gx.gpu();
    cpu.softmax(here, y.cpu(), x.cpu(), 1, log);
    gpu.softmax(there, device_y, x.gpu(), 1, log);
    CHECK(y.distance() <= device_tolerance<T>());
    cpu.softmax_backward(here, gx.cpu(), g.cpu(), y.cpu(), 1, log);
    gpu.softmax_backward(there, device_gx, g.gpu(), device_y, 1, log);
    CHECK(gx.distance() <= 4 * device_tolerance<T>(log ? c : 1));
  }
}

template <class T>
void check_cross_entropy(Index n, Index c, bool special) {
  CAPTURE(n, c, special);
  Stream here, there = device_stream();
  Twin<T> x({n, c}), loss({n}), lse({n}), g({n}), gx({n, c});
  Twin<Index> target({n});
  x.normal(1, 0, 3), g.normal(2);
  for (Index i = 0; i < n; ++i) target[i] = i % 5 == 2 ? -100 : i * 7919 % c;
  if (special) {
    for (Index j = 0; j < c; ++j) x.set(j, -kInf);
    x.set(c + c / 2, kNan).set(2 * c + c - 1, kInf);
    for (Index j = 1; j < c; ++j) x.set(3 * c + j, -kInf);
    target[3] = c - 1;
  }
  const View device_loss = loss.gpu(), device_lse = lse.gpu(), device_gx = gx.gpu();
  cpu.cross_entropy(here, loss.cpu(), lse.cpu(), x.cpu(), target.cpu(), -100);
  gpu.cross_entropy(there, device_loss, device_lse, x.gpu(), target.gpu(), -100);
  CHECK(loss.distance() <= device_tolerance<T>());
  CHECK(lse.distance() <= device_tolerance<T>());
  cpu.cross_entropy_backward(here, gx.cpu(), g.cpu(), x.cpu(), lse.cpu(), target.cpu(), -100);
  gpu.cross_entropy_backward(there, device_gx, g.gpu(), x.gpu(), device_lse, target.gpu(), -100);
  CHECK(gx.distance() <= 2 * device_tolerance<T>());
}

template <class T>
void check_batch_norm(Index n, Index c, Index inner, Layout layout = Layout::Contiguous) {
  CAPTURE(n, c, inner);
  Stream here, there = device_stream();
  const Index count = n * inner;
  Twin<T> x({n, c, inner}, layout), g({n, c, inner}, layout), w({c}), b({c}), mean({c}), var({c}), invstd({c});
  x.normal(1, 2, 3), g.normal(2), w.normal(3), b.normal(4);
  for (Index j = 0; j < c; ++j) invstd.set(j, 0.3 + 0.01 * static_cast<double>(j % 7));
  const View device_mean = mean.gpu(), device_var = var.gpu();
  cpu.channel_stats(here, mean.cpu(), var.cpu(), x.cpu());
  gpu.channel_stats(there, device_mean, device_var, x.gpu());
  CHECK(mean.distance() <= device_tolerance<T>(count));
  CHECK(var.distance() <= device_tolerance<T>(count));
  for (bool affine : {true, false}) {
    Twin<T> y({n, c, inner});
    const View device_y = y.gpu();
    cpu.batch_norm(here, y.cpu(), x.cpu(), mean.cpu(), invstd.cpu(), affine ? w.cpu() : w.null(),
                   affine ? b.cpu() : b.null());
    gpu.batch_norm(there, device_y, x.gpu(), device_mean, invstd.gpu(), affine ? w.gpu() : w.null(),
                   affine ? b.gpu() : b.null());
    CHECK(y.distance() <= device_tolerance<T>());
  }
  for (unsigned skip = 0; skip < 8; ++skip) {
    const bool training = skip % 2 == 0;
    Twin<T> gx({n, c, inner}), gw({c}), gb({c});
    const View gxs = gx.gpu(), gws = gw.gpu(), gbs = gb.gpu();
    cpu.batch_norm_backward(here, skip & 1 ? gx.null() : gx.cpu(), skip & 2 ? gw.null() : gw.cpu(),
                            skip & 4 ? gb.null() : gb.cpu(), g.cpu(), x.cpu(), mean.cpu(), invstd.cpu(),
                            skip == 4 ? w.null() : w.cpu(), training);
    gpu.batch_norm_backward(there, skip & 1 ? gx.null() : gxs, skip & 2 ? gw.null() : gws, skip & 4 ? gb.null() : gbs,
                            g.gpu(), x.gpu(), device_mean, invstd.gpu(), skip == 4 ? w.null() : w.gpu(), training);
    CHECK(gx.distance() <= 4 * device_tolerance<T>());
    CHECK(gw.distance() <= 4 * device_tolerance<T>(count));
    CHECK(gb.distance() <= 4 * device_tolerance<T>(count));
  }
  Twin<T> gx({n, c, inner});
  const View gxs = gx.gpu();
  cpu.batch_norm_backward(here, gx.cpu(), w.null(), w.null(), g.cpu(), x.cpu(), mean.cpu(), invstd.cpu(), w.cpu(),
                          false);
  gpu.batch_norm_backward(there, gxs, w.null(), w.null(), g.gpu(), x.gpu(), device_mean, invstd.gpu(), w.gpu(), false);
  CHECK(gx.distance() <= device_tolerance<T>());
}

template <class T>
void check_layer_norm(Index n, Index c, Layout layout = Layout::Contiguous) {
  CAPTURE(n, c);
  Stream here, there = device_stream();
  Twin<T> x({n, c}, layout), g({n, c}, layout), w({c}), b({c});
  x.normal(1, 2, 3), g.normal(2), w.normal(3), b.normal(4);
  for (bool affine : {true, false}) {
    Twin<T> y({n, c}), mean({n}), invstd({n}), gx({n, c}), gw({c}), gb({c});
    const View ys = y.gpu(), means = mean.gpu(), invstds = invstd.gpu(), gxs = gx.gpu(), gws = gw.gpu(), gbs = gb.gpu();
    cpu.layer_norm(here, y.cpu(), mean.cpu(), invstd.cpu(), x.cpu(), affine ? w.cpu() : w.null(),
                   affine ? b.cpu() : b.null(), 1e-5);
    gpu.layer_norm(there, ys, means, invstds, x.gpu(), affine ? w.gpu() : w.null(), affine ? b.gpu() : b.null(), 1e-5);
    CHECK(mean.distance() <= device_tolerance<T>());
    CHECK(invstd.distance() <= device_tolerance<T>());
    CHECK(y.distance() <= 4 * device_tolerance<T>());
    cpu.layer_norm_backward(here, gx.cpu(), affine ? gw.cpu() : gw.null(), gb.cpu(), g.cpu(), x.cpu(), mean.cpu(),
                            invstd.cpu(), affine ? w.cpu() : w.null());
    gpu.layer_norm_backward(there, gxs, affine ? gws : gw.null(), gbs, g.gpu(), x.gpu(), means, invstds,
                            affine ? w.gpu() : w.null());
    CHECK(gx.distance() <= 16 * device_tolerance<T>());
    CHECK(gw.distance() <= 4 * device_tolerance<T>(n));
    CHECK(gb.distance() <= 4 * device_tolerance<T>(n));
  }
}

constexpr Index kLengths[] = {1, 31, 33, 1000, 1025, 4099, 70000};

}  // namespace

TEMPLATE_TEST_CASE("CUDA reductions over any dimensions", "[cuda][reduce]", float, double, std::int32_t, std::int64_t,
                   std::uint8_t, bool) {
  using T = TestType;
  for (const Sizes& sizes :
       {Sizes{}, Sizes{300}, Sizes{7, 130}, Sizes{130, 3}, Sizes{5, 33, 9}, Sizes{2, 6, 5, 16}, Sizes{3, 2, 4, 3, 5}}) {
    for (unsigned dims = 0; dims < (1u << sizes.size()); ++dims) {
      bool good = true;
      for (Layout layout : kInLayouts) {
        good &= agree<T>(sizes, dims, layout, kOutLayouts[(dims + static_cast<unsigned>(layout)) % 3]);
      }
      CAPTURE(sizes, dims);
      CHECK(good);
    }
  }
}

TEMPLATE_TEST_CASE("CUDA reductions of long lines and columns", "[cuda][reduce]", float, double, std::int32_t,
                   std::uint8_t) {
  using T = TestType;
  for (Index length : kLengths) {
    CAPTURE(length);
    CHECK(agree<T>({length}, 1));
    CHECK(agree<T>({3, length}, 2, Layout::Reversed));
    CHECK(agree<T>({3, length}, 2, Layout::Shifted));
    CHECK(agree<T>({length, 3}, 1));
    CHECK(agree<T>({length, 3}, 2));
  }
  CHECK(agree<T>({1030, 40}, 1));
  CHECK(agree<T>({1030, 40}, 2));
  CHECK(agree<T>({40, 7, 300}, 0b101));
  CHECK(agree<T>({2, 3, 12000}, 0b101));
  CHECK(agree<T>({30, 41, 30}, 0b011, Layout::Spaced));
  CHECK(agree<T>({9, 30, 41, 5}, 0b1010, Layout::Transposed));
  CHECK(agree<T>({5000, 2}, 0));
}

TEMPLATE_TEST_CASE("CUDA sums are accurate and repeat", "[cuda][reduce]", float, double) {
  using T = TestType;
  Stream here, there = device_stream();
  for (const auto& [sizes, dims] :
       {std::pair{Sizes{100003}, 1u}, {Sizes{5, 20001}, 2u}, {Sizes{20001, 5}, 1u}, {Sizes{7, 50, 300}, 5u}}) {
    Twin<T> in(sizes), out(reduced(sizes, dims)), again(reduced(sizes, dims));
    in.normal(dims, 1, 1);
    const View first = out.gpu(), second = again.gpu();
    cpu.reduce(here, ReduceOp::Sum, out.cpu(), in.cpu());
    gpu.reduce(there, ReduceOp::Sum, first, in.gpu());
    gpu.reduce(there, ReduceOp::Sum, second, in.gpu());
    CHECK(out.distance() <= (std::is_same_v<T, float> ? 2.4e-7 : 1e-13));
    CHECK(out.device().same_bits(again.device()));
  }
}

TEST_CASE("CUDA reductions of special numbers", "[cuda][reduce]") {
  for (double special : {kNan, kInf, -kInf, -0.0}) {
    for (Index at : {0, 5, 77, 4999}) {
      for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min}) {
        const auto place = [&](auto& in) { in.set(at, special); };
        CHECK(agree<float, float>(op, {5000}, 1, Layout::Contiguous, Layout::Contiguous, place));
        CHECK(agree<double, double>(op, {50, 100}, 1, Layout::Contiguous, Layout::Contiguous, place));
        CHECK(agree<double, double>(op, {50, 100}, 2, Layout::Transposed, Layout::Contiguous, place));
      }
    }
  }
  const auto lowest = [](auto& in) {
    for (Index i = 0; i < in.size(); ++i) in.set(i, -kInf);
  };
  CHECK(agree<float, float>(ReduceOp::Max, {3, 100}, 2, Layout::Contiguous, Layout::Contiguous, lowest));
}

TEST_CASE("CUDA reductions of nothing", "[cuda][reduce]") {
  for (unsigned dims : {2u, 1u, 4u, 7u, 5u, 0u}) {
    CHECK(agree<float>({3, 0, 4}, dims));
    CHECK(agree<bool>({3, 0, 4}, dims));
  }
  CHECK(agree<double>({0}, 1));
  CHECK(agree<std::int32_t>({0, 3}, 1));
}

TEMPLATE_TEST_CASE("CUDA extremes with their places", "[cuda][reduce]", float, double, std::int32_t, std::int64_t,
                   std::uint8_t, bool) {
  using T = TestType;
  for (ReduceOp op : {ReduceOp::Max, ReduceOp::Min}) {
    for (const Sizes& sizes : {Sizes{90}, Sizes{1}, Sizes{7, 130}, Sizes{130, 3}, Sizes{5, 33, 9}, Sizes{4, 3, 1025}}) {
      for (Layout layout : kInLayouts) {
        for (int dim = 0; dim < static_cast<int>(sizes.size()); ++dim) {
          CAPTURE(sizes, dim);
          CHECK(agree_on_index<T>(op, sizes, dim, layout));
          if constexpr (std::is_floating_point_v<T>) {
            CHECK(agree_on_index<T>(op, sizes, dim, layout, kNan));
            CHECK(agree_on_index<T>(op, sizes, dim, layout, op == ReduceOp::Max ? -kInf : kInf));
          }
        }
      }
    }
    CHECK(agree_on_index<T>(op, {70000}, 0, Layout::Contiguous));
    CHECK(agree_on_index<T>(op, {2, 70000}, 1, Layout::Reversed));
    CHECK(agree_on_index<T>(op, {70000, 2}, 0, Layout::Contiguous));
    CHECK(agree_on_index<T>(op, {0, 3}, 1, Layout::Contiguous));
  }
}

TEST_CASE("CUDA extremes of a row without any", "[cuda][reduce]") {
  Stream there = device_stream();
  Twin<float> low({2, 500}), value({2, 1});
  Twin<Index> place({2, 1});
  for (Index i = 0; i < low.size(); ++i) low.set(i, -kInf);
  const View values = value.gpu(), places = place.gpu();
  gpu.reduce_index(there, ReduceOp::Max, values, places, low.gpu(), 1);
  CHECK(place.device()[0] == 0);
  CHECK(value.device()[1] == -std::numeric_limits<float>::infinity());
}

TEMPLATE_TEST_CASE("CUDA softmax", "[cuda][softmax]", float, double) {
  using T = TestType;
  for (Index c : kLengths) check_softmax<T>(c < 2000 ? 5 : 1, c, 1);
  for (Index c : {1, 2, 5, 33, 300}) {
    for (Index inner : {2, 7, 49, 130}) check_softmax<T>(c == 300 ? 1 : 3, c, inner);
  }
  check_softmax<T>(1, 4099, 3);
  check_softmax<T>(700, 10, 1);
  check_softmax<T>(6, 64, 1, Layout::Shifted);
  check_softmax<T>(2, 9000, 1, Layout::Shifted);
  check_softmax<T>(0, 5, 1);
  check_softmax<T>(3, 0, 1);
  check_softmax<T>(3, 0, 2);
}

TEMPLATE_TEST_CASE("CUDA softmax of special numbers", "[cuda][softmax]", float, double) {
  using T = TestType;
  Stream here, there = device_stream();
  for (Index c : {20, 3000, 20000}) {
    for (Index inner : {1, 3}) {
      for (bool log : {false, true}) {
        Twin<T> x({6, c, inner}), y({6, c, inner});
        x.normal(1);
        const auto at = [&](Index row, Index j) { return row * c * inner + j * inner; };
        for (Index j = 0; j < c; ++j) x.set(at(0, j), -kInf);
        x.set(at(1, c / 2), kNan).set(at(2, c - 1), kInf);
        for (Index j = 1; j < c; ++j) x.set(at(3, j), -kInf);
        for (Index j = 0; j + 1 < c; ++j) x.set(at(4, j), -kInf);
        for (Index j = 0; j < c; ++j) x.set(at(5, j), j == 7 ? kNan : -kInf);
        const View device_y = y.gpu();
        cpu.softmax(here, y.cpu(), x.cpu(), 1, log);
        gpu.softmax(there, device_y, x.gpu(), 1, log);
        CAPTURE(c, inner, log);
        CHECK(y.distance() <= device_tolerance<T>());
      }
    }
  }
}

TEMPLATE_TEST_CASE("CUDA cross entropy", "[cuda][softmax]", float, double) {
  using T = TestType;
  for (Index c : kLengths) check_cross_entropy<T>(c < 2000 ? 9 : 3, c, false);
  check_cross_entropy<T>(700, 10, false);
  check_cross_entropy<T>(0, 10, false);
  check_cross_entropy<T>(6, 40, true);
  check_cross_entropy<T>(6, 9001, true);
  check_cross_entropy<T>(6, 9004, true);
}

TEST_CASE("CUDA cross entropy reports targets out of range", "[cuda][softmax]") {
  Stream there = device_stream();
  for (Index bad : {Index{40}, Index{-1}, Index{1} << 40}) {
    Twin<float> x({20, 40}), loss({20}), lse({20}), g({20}), gx({20, 40});
    Twin<Index> target({20});
    x.normal(1), g.normal(2);
    for (Index i = 0; i < 20; ++i) target[i] = i == 13 ? bad : i;
    const View losses = loss.gpu(), lses = lse.gpu(), gxs = gx.gpu();
    gpu.cross_entropy(there, losses, lses, x.gpu(), target.gpu(), -100);
    gpu.cross_entropy_backward(there, gxs, g.gpu(), x.gpu(), lses, target.gpu(), -100);
    device_queue().synchronize();
    const cuda::FaultReport report = device_queue().take_fault();
    CHECK(report.fault.set);
    CHECK(report.fault.position == 13);
    CHECK(report.fault.value == bad);
    CHECK(report.fault.limit == 40);
    CHECK(std::string(report.op) == "cross_entropy");
    CHECK(loss.device()[13] == 0);
    CHECK(loss.device()[12] > 0);
    for (Index j = 0; j < 40; ++j) CHECK(gx.device()[13 * 40 + j] == 0);
    CHECK(gx.device()[12 * 40] != 0);
  }
}

TEMPLATE_TEST_CASE("CUDA batch normalisation", "[cuda][norm]", float, double) {
  using T = TestType;
  check_batch_norm<T>(8, 5, 1);
  check_batch_norm<T>(1, 3, 1);
  check_batch_norm<T>(300, 33, 1);
  check_batch_norm<T>(5000, 4, 1);
  check_batch_norm<T>(4, 3, 49);
  check_batch_norm<T>(2, 70, 64);
  check_batch_norm<T>(3, 2, 4099);
  check_batch_norm<T>(1, 1, 20000);
  check_batch_norm<T>(40, 3, 400);
  check_batch_norm<T>(4, 3, 64, Layout::Shifted);
  check_batch_norm<T>(0, 3, 5);
  check_batch_norm<T>(2, 0, 5);
  check_batch_norm<T>(0, 3, 1);
}

TEMPLATE_TEST_CASE("CUDA layer normalisation", "[cuda][norm]", float, double) {
  using T = TestType;
  for (Index c : kLengths) check_layer_norm<T>(c < 2000 ? 9 : 2, c);
  check_layer_norm<T>(3000, 10);
  check_layer_norm<T>(5, 256, Layout::Shifted);
  check_layer_norm<T>(5, 8192);
  check_layer_norm<T>(0, 5);
  check_layer_norm<T>(3, 0);
}
