// Indexing, pooling, random numbers and unfolding of CUDA devices against the CPU backend: all equal, bit for bit.

#include <algorithm>
#include <cmath>
#include <string>

#include "../../kernels/cuda/im2col.cuh"
#include "../catch.h"
#include "twin.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

/// A call to both backends, and whether they met the same kind of index.
struct Streams {
  Stream cpu{}, gpu = device_stream();

  /// No index was out of range.
  void check_good() {
    CHECK(!cpu.index_fault.set);
    CHECK(!fault().fault.set);
  }
  /// An index was, and what the device says of it is true.
  void check_bad(Twin<Index>& index, Index limit, const char* op) {
    CHECK(cpu.index_fault.set);
    const cuda::FaultReport report = fault();
    REQUIRE(report.fault.set);
    CHECK(report.op == std::string(op));
    CHECK(report.fault.limit == limit);
    REQUIRE(report.fault.position >= 0);
    REQUIRE(report.fault.position < index.size());
    CHECK(index[report.fault.position] == report.fault.value);
    CHECK((report.fault.value < 0 || report.fault.value >= limit));
    CHECK(!fault().fault.set);
  }

 private:
  cuda::FaultReport fault() {
    gpu.queue->synchronize();
    return gpu.queue->take_fault();
  }
};

/// Random indices in [0, limit), or where `bad`, some beyond.
Twin<Index> make_index(Sizes sizes, Index limit, bool bad, unsigned seed = 5, Layout layout = Layout::Contiguous) {
  Twin<Index> index(std::move(sizes), layout);
  index.uniform(seed, 0, static_cast<double>(limit));
  if (bad) {
    for (Index i = index.size() / 2; i < index.size(); i += 3) index[i] = i % 2 == 0 ? limit + i : -1 - i;
  }
  return index;
}

template <class T>
void check_select(const Sizes& sizes, int dim, Index count, Layout layout, Layout out_layout, bool bad) {
  CAPTURE(sizes, dim, count, static_cast<int>(layout), static_cast<int>(out_layout), bad);
  const auto d = static_cast<std::size_t>(dim);
  Sizes out_sizes = sizes;
  out_sizes[d] = count;
  Twin<T> in(sizes, layout), out(out_sizes, out_layout);
  in.uniform(1, -9, 9);
  Twin<Index> index = make_index({count}, sizes[d], bad, 5, layout);
  Streams streams;
  cuda_backend().index_select(streams.gpu, out.gpu(), in.gpu(), dim, index.gpu());
  cpu_backend().index_select(streams.cpu, out.cpu(), in.cpu(), dim, index.cpu());
  bad ? streams.check_bad(index, sizes[d], "index_select") : streams.check_good();
  CHECK(out.same_bits());
}

template <class T>
void check_gather(const Sizes& sizes, int dim, Index count, Layout layout, Layout out_layout, bool bad) {
  CAPTURE(sizes, dim, count, static_cast<int>(layout), static_cast<int>(out_layout), bad);
  const auto d = static_cast<std::size_t>(dim);
  Sizes out_sizes = sizes;
  out_sizes[d] = count;
  Twin<T> in(sizes, layout), out(out_sizes, out_layout);
  in.uniform(1, -9, 9);
  Twin<Index> index = make_index(out_sizes, sizes[d], bad, 5, layout);
  Streams streams;
  cuda_backend().gather(streams.gpu, out.gpu(), in.gpu(), dim, index.gpu());
  cpu_backend().gather(streams.cpu, out.cpu(), in.cpu(), dim, index.cpu());
  bad ? streams.check_bad(index, sizes[d], "gather") : streams.check_good();
  CHECK(out.same_bits());
}

/// Real numbers of all sizes, so that another order of sums would show.
template <class T>
void check_add(const Sizes& sizes, int dim, Index count, Layout layout, Layout out_layout, bool bad) {
  CAPTURE(sizes, dim, count, static_cast<int>(layout), static_cast<int>(out_layout), bad);
  const auto d = static_cast<std::size_t>(dim);
  Sizes src_sizes = sizes;
  src_sizes[d] = count;
  Twin<T> src(src_sizes, layout), out(sizes, out_layout);
  src.uniform(1, std::is_unsigned_v<T> ? 0 : -100, 100), out.uniform(2, 0, 1);
  Twin<Index> index = make_index({count}, sizes[d], bad, 5, layout);
  Streams streams;
  cuda_backend().index_add(streams.gpu, out.gpu(), dim, index.gpu(), src.gpu());
  cpu_backend().index_add(streams.cpu, out.cpu(), dim, index.cpu(), src.cpu());
  bad ? streams.check_bad(index, sizes[d], "index_add") : streams.check_good();
  CHECK(out.same_bits());
}

template <class T>
void check_scatter(const Sizes& sizes, int dim, Index count, Layout layout, Layout out_layout, bool bad) {
  CAPTURE(sizes, dim, count, static_cast<int>(layout), static_cast<int>(out_layout), bad);
  const auto d = static_cast<std::size_t>(dim);
  Sizes src_sizes = sizes;
  src_sizes[d] = count;
  Twin<T> src(src_sizes, layout), out(sizes, out_layout);
  src.uniform(1, std::is_unsigned_v<T> ? 0 : -100, 100), out.uniform(2, 0, 1);
  Twin<Index> index = make_index(src_sizes, sizes[d], bad, 5, layout);
  Streams streams;
  cuda_backend().scatter_add(streams.gpu, out.gpu(), dim, index.gpu(), src.gpu());
  cpu_backend().scatter_add(streams.cpu, out.cpu(), dim, index.cpu(), src.cpu());
  bad ? streams.check_bad(index, sizes[d], "scatter_add") : streams.check_good();
  CHECK(out.same_bits());
}

struct Pooling {
  Index n, c, h, w;
  Pool2dArgs args;
  Index out(int d) const { return ((d == 0 ? h : w) + 2 * args.padding[d] - args.kernel[d]) / args.stride[d] + 1; }
};
const Pooling kPoolings[] = {
    {2, 3, 8, 8, {{2, 2}, {2, 2}, {0, 0}}},     {1, 1, 1, 1, {{1, 1}, {1, 1}, {0, 0}}},
    {3, 2, 7, 9, {{3, 3}, {2, 2}, {1, 1}}},     {2, 2, 13, 5, {{3, 2}, {1, 3}, {1, 0}}},
    {1, 70, 6, 6, {{3, 3}, {1, 1}, {1, 1}}},    {1, 2, 9, 9, {{2, 2}, {4, 3}, {0, 0}}},
    {1, 2, 100, 101, {{2, 2}, {2, 2}, {0, 0}}}, {2, 1, 60, 60, {{3, 3}, {1, 1}, {1, 1}}},
    {1, 2, 90, 130, {{3, 3}, {1, 1}, {1, 1}}},  {1, 1, 210, 200, {{5, 4}, {3, 4}, {2, 2}}},
    {0, 3, 4, 4, {{2, 2}, {2, 2}, {0, 0}}},     {1, 1, 12, 12, {{9, 9}, {1, 1}, {4, 4}}},
    {1, 300, 5, 5, {{5, 5}, {5, 5}, {0, 0}}},
};

/// `few`: few different values, so that there are ties; and NaN and infinities.
template <class T>
void check_pooling(const Pooling& p, bool few) {
  CAPTURE(p.n, p.c, p.h, p.w, p.args.kernel, p.args.stride, p.args.padding, few);
  const Sizes in_sizes{p.n, p.c, p.h, p.w}, out_sizes{p.n, p.c, p.out(0), p.out(1)};
  Twin<T> x(in_sizes), y(out_sizes), gy(out_sizes), gx(in_sizes), taken(out_sizes), means(out_sizes), gm(in_sizes);
  Twin<Index> index(out_sizes);
  x.uniform(1, -2, 2), gy.uniform(2, -2, 2);
  for (Index i = 0; few && i < x.size(); ++i) {
    x[i] = i % 17 == 3   ? std::numeric_limits<T>::quiet_NaN()
           : i % 13 == 2 ? -std::numeric_limits<T>::infinity()
                         : std::round(x[i]);
  }
  Streams s;
  cuda_backend().max_pool2d(s.gpu, y.gpu(), index.gpu(), x.gpu(), p.args);
  cpu_backend().max_pool2d(s.cpu, y.cpu(), index.cpu(), x.cpu(), p.args);
  cuda_backend().max_pool2d_backward(s.gpu, gx.gpu(), gy.gpu(), index.gpu());
  cpu_backend().max_pool2d_backward(s.cpu, gx.cpu(), gy.cpu(), index.cpu());
  cuda_backend().max_pool2d_take(s.gpu, taken.gpu(), x.gpu(), index.gpu());
  cpu_backend().max_pool2d_take(s.cpu, taken.cpu(), x.cpu(), index.cpu());
  s.check_good();
  CHECK(y.same_bits());
  CHECK(index.same_bits());
  CHECK(gx.same_bits());
  CHECK(taken.same_bits());
  if (few) return;
  cuda_backend().avg_pool2d(s.gpu, means.gpu(), x.gpu(), p.args);
  cpu_backend().avg_pool2d(s.cpu, means.cpu(), x.cpu(), p.args);
  cuda_backend().avg_pool2d_backward(s.gpu, gm.gpu(), gy.gpu(), p.args);
  cpu_backend().avg_pool2d_backward(s.cpu, gm.cpu(), gy.cpu(), p.args);
  s.check_good();
  CHECK(means.same_bits());
  CHECK(gm.same_bits());
}

constexpr PhiloxState kStates[] = {{1, 0, 0}, {0x123456789abcdef0, 0xfedcba9876543210, 0xfffffffe}};
constexpr Index kDraws[] = {0, 1, 2, 3, 4, 5, 7, 8, 1027, 40001};

/// kStates with every `skip` that a draw of `per_block` elements per block may have.
std::vector<PhiloxState> states(Index per_block) {
  std::vector<PhiloxState> all;
  for (PhiloxState state : kStates) {
    for (; state.skip < per_block; ++state.skip) all.push_back(state);
  }
  return all;
}

template <class T, class F>
void check_draws(Index per_block, const F& draw) {
  for (const PhiloxState& state : states(per_block)) {
    for (const Index n : kDraws) {
      for (const Layout layout : {Layout::Contiguous, Layout::Shifted}) {
        CAPTURE(n, state.seed, state.skip, static_cast<int>(layout), name_of(dtype_of<T>()));
        Twin<T> out({n}, layout);
        Streams s;
        draw(cuda_backend(), s.gpu, out.gpu(), state);
        draw(cpu_backend(), s.cpu, out.cpu(), state);
        s.check_good();
        CHECK(out.same_bits());
      }
    }
  }
}

template <class T>
void check_dropout() {
  for (const double p : {0.0, 0.3, 0.999, 1.0}) {
    for (const PhiloxState& state : states(4)) {
      for (const Index n : kDraws) {
        for (const Layout layout : {Layout::Contiguous, Layout::Shifted}) {
          CAPTURE(p, n, state.seed, state.skip, static_cast<int>(layout));
          Twin<T> in({n}), out({n}, layout);
          Twin<bool> mask({n}, layout);
          in.uniform(3, -2, 2);
          Streams s;
          cuda_backend().dropout(s.gpu, out.gpu(), mask.gpu(), in.gpu(), state, p);
          cpu_backend().dropout(s.cpu, out.cpu(), mask.cpu(), in.cpu(), state, p);
          s.check_good();
          CHECK(out.same_bits());
          CHECK(mask.same_bits());
        }
      }
    }
  }
}

/// `side_by_side`: one matrix of all images, else one per image.
template <class T>
void check_unfolding(cuda::ConvGeometry g, bool side_by_side) {
  CAPTURE(g.images, g.channels, g.h, g.w, g.kh, g.kw, side_by_side);
  g.oh = (g.h + 2 * g.padding[0] - g.dilation[0] * (g.kh - 1) - 1) / g.stride[0] + 1;
  g.ow = (g.w + 2 * g.padding[1] - g.dilation[1] * (g.kw - 1) - 1) / g.stride[1] + 1;
  const Index rows = g.channels * g.kh * g.kw, plane = g.oh * g.ow;
  g.image_stride = (g.channels + 1) * g.h * g.w;  // the channels of another group lie between
  g.column_image_stride = side_by_side ? plane : rows * plane;
  g.column_row_stride = side_by_side ? g.images * plane : plane;
  Twin<T> x({g.images, g.channels + 1, g.h, g.w}), columns({g.images * rows * plane}),
      again = Twin<T>({g.images, g.channels + 1, g.h, g.w});
  x.uniform(1, -2, 2), again.uniform(2, -2, 2);
  Streams s;
  const cudaStream_t stream = s.gpu.queue->compute().get();
  cuda::im2col(stream, g, x.gpu().data, columns.gpu().data, dtype_of<T>());
  cuda::col2im(stream, g, columns.gpu().data, again.gpu().data, dtype_of<T>());
  s.check_good();

  for (Index i = 0; i < g.images; ++i) {
    for (Index c = 0; c < g.channels; ++c) {
      const Index from = i * g.image_stride + c * g.h * g.w;
      for (Index at = 0; at < g.h * g.w; ++at) again[from + at] = 0;
      for (Index k = 0; k < g.kh * g.kw; ++k) {
        const Index line = i * g.column_image_stride + (c * g.kh * g.kw + k) * g.column_row_stride;
        for (Index o = 0; o < plane; ++o) {
          const Index row = o / g.ow * g.stride[0] + k / g.kw * g.dilation[0] - g.padding[0];
          const Index col = o % g.ow * g.stride[1] + k % g.kw * g.dilation[1] - g.padding[1];
          const bool inside = row >= 0 && row < g.h && col >= 0 && col < g.w;
          columns[line + o] = inside ? x[from + row * g.w + col] : T(0);
          if (inside) again[from + row * g.w + col] += columns[line + o];
        }
      }
    }
  }
  CHECK(columns.same_bits());
  CHECK(again.same_bits());
}

}  // namespace

TEST_CASE("index_select on a device", "[cuda]") {
  for (const bool bad : {false, true}) {
    for (const Layout layout : kLayouts) {
      for (const Layout out_layout : kLayouts) {
        check_select<float>({5, 8}, 0, 7, layout, out_layout, bad);
        check_select<std::uint8_t>({3, 4, 5}, 1, 6, layout, out_layout, bad);
      }
      check_select<double>({4, 6, 3, 2}, 2, 9, layout, Layout::Contiguous, bad);
      check_select<Index>({300}, 0, 1000, Layout::Contiguous, layout, bad);
      check_select<bool>({7, 5}, 1, 3, layout, layout, bad);
    }
    check_select<float>({50, 256}, 0, 70, Layout::Contiguous, Layout::Contiguous, bad);
    check_select<std::int32_t>({3, 20, 4, 4}, 1, 30, Layout::Contiguous, Layout::Contiguous, bad);
    check_select<std::uint8_t>({1, 20, 32}, 1, 30, Layout::Contiguous, Layout::Contiguous, bad);
    check_select<float>({4, 0, 3}, 0, 5, Layout::Contiguous, Layout::Contiguous, bad);
  }
  check_select<float>({4, 3}, 0, 0, Layout::Contiguous, Layout::Contiguous, false);
}

TEST_CASE("gather on a device", "[cuda]") {
  for (const bool bad : {false, true}) {
    for (const Layout layout : kLayouts) {
      check_gather<float>({5, 8}, 0, 7, layout, Layout::Contiguous, bad);
      check_gather<double>({3, 4, 5}, 1, 6, layout, layout, bad);
      check_gather<std::uint8_t>({4, 6, 3, 2}, 3, 9, Layout::Contiguous, layout, bad);
      check_gather<bool>({700}, 0, 1000, layout, layout, bad);
    }
  }
  check_gather<float>({4, 3}, 1, 0, Layout::Contiguous, Layout::Contiguous, false);
}

TEST_CASE("index_add on a device sums in order", "[cuda]") {
  for (const bool bad : {false, true}) {
    for (const Layout layout : kLayouts) {
      for (const Index count : {Index{3}, Index{100}}) {
        check_add<float>({5, 8}, 0, count, layout, layout, bad);
        check_add<double>({3, 4, 5}, 1, count, layout, Layout::Contiguous, bad);
        check_add<float>({6, 2, 7}, 2, count, Layout::Contiguous, layout, bad);
      }
      check_add<float>({40, 12}, 0, 5000, layout, layout, bad);
    }
    for (const Index count : {Index{20}, Index{200}}) {
      check_add<bool>({7, 4}, 0, count, Layout::Contiguous, Layout::Contiguous, bad);
      check_add<std::uint8_t>({2, 7, 4}, 1, count, Layout::Contiguous, Layout::Contiguous, bad);
      check_add<std::int32_t>({7, 8}, 0, count, Layout::Contiguous, Layout::Contiguous, bad);
      check_add<Index>({7, 8}, 0, count, Layout::Contiguous, Layout::Contiguous, bad);
      check_add<float>({4, 0, 3}, 0, count, Layout::Contiguous, Layout::Contiguous, bad);
    }
    // Around the limits of the ways to sort, and with keys of one to three bytes.
    for (const Index count : {Index{4095}, Index{4096}, Index{4097}, Index{6144}, Index{10001}}) {
      check_add<float>({300, 3}, 0, count, Layout::Contiguous, Layout::Contiguous, bad);
    }
    check_add<double>({200}, 0, 9000, Layout::Contiguous, Layout::Contiguous, bad);
    check_add<float>({70000}, 0, 9000, Layout::Contiguous, Layout::Contiguous, bad);
    check_add<float>({1, 64}, 0, 600, Layout::Contiguous, Layout::Contiguous, bad);
  }
  // More tiles of keys than a block sums at a time.
  check_add<float>({50}, 0, 530000, Layout::Contiguous, Layout::Contiguous, false);
  check_add<float>({4, 3}, 0, 0, Layout::Contiguous, Layout::Contiguous, false);
}

TEST_CASE("scatter_add on a device sums in order", "[cuda]") {
  for (const bool bad : {false, true}) {
    for (const Layout layout : kLayouts) {
      for (const Index count : {Index{3}, Index{100}}) {
        check_scatter<float>({5, 8}, 0, count, layout, layout, bad);
        check_scatter<double>({3, 4, 5}, 1, count, layout, Layout::Contiguous, bad);
        check_scatter<float>({6, 2, 7}, 2, count, Layout::Contiguous, layout, bad);
      }
      check_scatter<float>({3, 40, 2}, 1, 1000, layout, layout, bad);
    }
    for (const Index count : {Index{20}, Index{200}}) {
      check_scatter<bool>({7, 4}, 0, count, Layout::Contiguous, Layout::Contiguous, bad);
      check_scatter<std::uint8_t>({2, 7, 4}, 1, count, Layout::Contiguous, Layout::Contiguous, bad);
      check_scatter<std::int32_t>({7, 8}, 0, count, Layout::Contiguous, Layout::Contiguous, bad);
      check_scatter<Index>({7, 8}, 0, count, Layout::Contiguous, Layout::Contiguous, bad);
    }
    check_scatter<float>({10}, 0, 20000, Layout::Contiguous, Layout::Contiguous, bad);
    check_scatter<float>({3, 1 << 15}, 1, 2100, Layout::Contiguous, Layout::Contiguous, bad);
    check_scatter<float>({1 << 16, 2}, 1, 33, Layout::Contiguous, Layout::Contiguous, bad);
  }
  check_scatter<float>({4, 3}, 1, 0, Layout::Contiguous, Layout::Contiguous, false);
}

TEST_CASE("Pooling on a device", "[cuda]") {
  for (const Pooling& pooling : kPoolings) {
    check_pooling<float>(pooling, false);
    check_pooling<float>(pooling, true);
    check_pooling<double>(pooling, true);
  }
  check_pooling<double>(kPoolings[2], false);
}

TEST_CASE("One element that every window took", "[cuda]") {
  // The same element, in planes of either size.
  for (const Index out : {Index{30}, Index{70}}) {
    Twin<float> gx({2, 2, 3, 100}), gy({2, 2, out, out});
    Twin<Index> index({2, 2, out, out});
    gy.uniform(1, -2, 2);
    for (Index i = 0; i < index.size(); ++i) index[i] = i % 700 == 0 ? i % 300 : i % 100 < 90 ? i % 30 * 10 : 150;
    Streams s;
    cuda_backend().max_pool2d_backward(s.gpu, gx.gpu(), gy.gpu(), index.gpu());
    cpu_backend().max_pool2d_backward(s.cpu, gx.cpu(), gy.cpu(), index.cpu());
    s.check_good();
    CHECK(gx.same_bits());
  }
}

TEST_CASE("A device draws the CPU's random numbers", "[cuda]") {
  const auto uniform = [](const Backend& backend, Stream& stream, const View& out, const PhiloxState& state) {
    backend.uniform(stream, out, state, -0.3, 1.7);
  };
  const auto normal = [](const Backend& backend, Stream& stream, const View& out, const PhiloxState& state) {
    backend.normal(stream, out, state, 0.4, 1.3);
  };
  const auto randint = [](const Backend& backend, Stream& stream, const View& out, const PhiloxState& state) {
    backend.randint(stream, out, state, 0, 200);
  };
  check_draws<float>(4, uniform);
  check_draws<double>(2, uniform);
  check_draws<float>(4, normal);
  check_draws<double>(2, normal);
  check_draws<bool>(2, randint);
  check_draws<std::uint8_t>(2, randint);
  check_draws<std::int32_t>(2, randint);
  check_draws<Index>(2, randint);
  check_draws<float>(2, randint);
  check_draws<double>(2, randint);
  check_dropout<float>();
  check_dropout<double>();
}

TEST_CASE("Unfolding on a device", "[cuda]") {
  cuda::ConvGeometry g;
  for (const bool side_by_side : {false, true}) {
    g.images = 2, g.channels = 3, g.h = 7, g.w = 9, g.kh = 3, g.kw = 2;
    g.padding[0] = 1, g.stride[1] = 2, g.dilation[0] = 2;
    check_unfolding<float>(g, side_by_side);
    g = {};
    g.images = 1, g.channels = 2, g.h = 20, g.w = 17, g.kh = 5, g.kw = 5;
    g.padding[0] = g.padding[1] = 2;
    check_unfolding<double>(g, side_by_side);
    g = {};
    g.images = 40, g.channels = 1, g.h = 4, g.w = 4, g.kh = 4, g.kw = 4;
    check_unfolding<float>(g, side_by_side);
    g = {};
    g.images = 0, g.channels = 1, g.h = 4, g.w = 4, g.kh = 4, g.kw = 4;
    check_unfolding<float>(g, side_by_side);
    g = {};
  }
}
