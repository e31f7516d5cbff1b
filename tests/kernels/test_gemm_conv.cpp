// Matrix products and convolutions against plain loops; integer-valued data, so that equality is exact.

#include "../catch.h"
#include "array.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

using Index = std::int64_t;

/// A matrix in memory with room between its lines, so that leading dimensions matter.
template <class T>
struct Operand2d {
  Operand2d(Index batch, Index rows, Index cols, bool transposed, Index gap, unsigned seed)
      : memory({batch, transposed ? cols : rows, (transposed ? rows : cols) + gap}), shape{batch, rows, cols} {
    memory.integers(seed);
    const Index ld = (transposed ? rows : cols) + gap;
    strides[0] = batch == 1 ? 0 : memory.strides[0];
    strides[1] = transposed ? 1 : ld;
    strides[2] = transposed ? ld : 1;
  }
  View view(int ndim) { return {memory.data.data(), shape + 3 - ndim, strides + 3 - ndim, ndim, dtype_of<T>()}; }
  T at(Index b, Index i, Index j) const { return memory[b * strides[0] + i * strides[1] + j * strides[2]]; }

  Array<T> memory;
  Index shape[3], strides[3];
};

template <class T>
void check_gemm(Index batch, Index a_batch, Index b_batch, Index m, Index n, Index k, bool ta, bool tb, double beta,
                Index gap) {
  CAPTURE(batch, a_batch, b_batch, m, n, k, ta, tb, beta, gap);
  Operand2d<T> a(a_batch, m, k, ta, gap, 1);
  Operand2d<T> b(b_batch, k, n, tb, gap, 2);
  Operand2d<T> c(batch, m, n, false, gap, 3);
  a.shape[0] = b.shape[0] = batch;
  if (batch > 1) c.strides[0] = c.memory.strides[0];
  if (beta == 0) c.memory.clear();
  const Array<T> before = c.memory;
  const int ndim = batch > 1 ? 3 : 2;
  Stream stream;
  cpu_backend().gemm(stream, c.view(ndim), a.view(ndim), b.view(ndim), beta);
  Index wrong = 0;
  for (Index i = 0; i < batch; ++i) {
    for (Index r = 0; r < m; ++r) {
      for (Index q = 0; q < n; ++q) {
        T sum = beta == 0 ? T(0) : static_cast<T>(beta) * before[i * c.strides[0] + r * c.strides[1] + q];
        for (Index l = 0; l < k; ++l) sum += a.at(i, r, l) * b.at(i, l, q);
        wrong += c.at(i, r, q) != sum;
      }
    }
  }
  CHECK(wrong == 0);
  // The gaps between rows stay as they were.
  for (Index line = 0; gap > 0 && line < c.memory.size(); line += n + gap) {
    wrong += std::memcmp(&c.memory[line + n], &before[line + n], static_cast<std::size_t>(gap) * sizeof(T)) != 0;
  }
  CHECK(wrong == 0);
}

struct Geometry {
  Index n, groups, ci, co, h, w, kh, kw;
  Conv2dArgs args;
  Index out(int d) const {
    const Index size = d == 0 ? h : w;
    const Index kernel = d == 0 ? kh : kw;
    return (size + 2 * args.padding[d] - args.dilation[d] * (kernel - 1) - 1) / args.stride[d] + 1;
  }
  bool fits() const {
    return h + 2 * args.padding[0] >= args.dilation[0] * (kh - 1) + 1 &&
           w + 2 * args.padding[1] >= args.dilation[1] * (kw - 1) + 1;
  }
};

/// Calls f(input index, weight index, output index) for every product of a convolution.
template <class F>
void for_each_product(const Geometry& g, F&& f) {
  const Index oh = g.out(0), ow = g.out(1);
  for (Index n = 0; n < g.n; ++n) {
    for (Index o = 0; o < g.groups * g.co; ++o) {
      for (Index c = 0; c < g.ci; ++c) {
        for (Index i = 0; i < g.kh; ++i) {
          for (Index j = 0; j < g.kw; ++j) {
            for (Index r = 0; r < oh; ++r) {
              for (Index q = 0; q < ow; ++q) {
                const Index y = r * g.args.stride[0] - g.args.padding[0] + i * g.args.dilation[0];
                const Index x = q * g.args.stride[1] - g.args.padding[1] + j * g.args.dilation[1];
                if (y < 0 || y >= g.h || x < 0 || x >= g.w) continue;
                const Index channel = o / g.co * g.ci + c;
                f(((n * g.groups * g.ci + channel) * g.h + y) * g.w + x, ((o * g.ci + c) * g.kh + i) * g.kw + j,
                  ((n * g.groups * g.co + o) * oh + r) * ow + q);
              }
            }
          }
        }
      }
    }
  }
}

template <class T>
struct Convolution {
  explicit Convolution(const Geometry& g)
      : x({g.n, g.groups * g.ci, g.h, g.w}),
        w({g.groups * g.co, g.ci, g.kh, g.kw}),
        bias({g.groups * g.co}),
        y({g.n, g.groups * g.co, g.out(0), g.out(1)}),
        gx(x),
        gw(w),
        gy(y) {
    x.integers(1);
    w.integers(2);
    bias.integers(3);
    gy.integers(4);
  }
  void run(const Geometry& g, int threads, bool with_bias) {
    Stream stream;
    stream.threads = threads;
    const Backend& backend = cpu_backend();
    const Index bytes = backend.conv2d_workspace(stream, x.view(), w.view(), y.view(), g.args);
    Array<T> workspace({bytes / static_cast<Index>(sizeof(T))});
    y.clear(), gx.clear(), gw.clear();
    backend.conv2d(stream, y.view(), x.view(), w.view(), with_bias ? bias.view() : bias.null(), g.args,
                   workspace.data.data());
    workspace.clear();
    backend.conv2d_input(stream, gx.view(), gy.view(), w.view(), g.args, workspace.data.data());
    workspace.clear();
    backend.conv2d_weight(stream, gw.view(), gy.view(), x.view(), g.args, workspace.data.data());
  }
  Array<T> x, w, bias, y, gx, gw, gy;
};

template <class T>
void check_convolution(const Geometry& g, bool with_bias = true) {
  CAPTURE(g.n, g.groups, g.ci, g.co, g.h, g.w, g.kh, g.kw, g.args.stride[0], g.args.stride[1], g.args.padding[0],
          g.args.padding[1], g.args.dilation[0], g.args.dilation[1]);
  Convolution<T> c(g);
  c.run(g, 1, with_bias);
  std::vector<T> y(c.y.data.size()), gx(c.gx.data.size()), gw(c.gw.data.size());
  const Index plane = g.out(0) * g.out(1);
  for (std::size_t i = 0; with_bias && i < y.size(); ++i) {
    y[i] = c.bias[static_cast<Index>(i) / plane % (g.groups * g.co)];
  }
  for_each_product(g, [&](Index xi, Index wi, Index yi) {
    y[static_cast<std::size_t>(yi)] += c.x[xi] * c.w[wi];
    gx[static_cast<std::size_t>(xi)] += c.w[wi] * c.gy[yi];
    gw[static_cast<std::size_t>(wi)] += c.x[xi] * c.gy[yi];
  });
  CHECK(c.y.data == y);
  CHECK(c.gx.data == gx);
  CHECK(c.gw.data == gw);
}

}  // namespace

TEST_CASE("gemm equals three loops for every layout and small size", "[gemm]") {
  const Index sizes[] = {0, 1, 2, 7, 33};
  for (Index m : sizes) {
    for (Index n : sizes) {
      for (Index k : sizes) {
        for (int flags = 0; flags < 4; ++flags) {
          const bool ta = flags & 1, tb = flags & 2;
          check_gemm<float>(1, 1, 1, m, n, k, ta, tb, 0, 0);
          check_gemm<float>(1, 1, 1, m, n, k, ta, tb, 2, 3);
          check_gemm<double>(1, 1, 1, m, n, k, ta, tb, 0, 3);
          check_gemm<double>(1, 1, 1, m, n, k, ta, tb, 1, 0);
        }
      }
    }
  }
}

TEST_CASE("gemm at sizes around its tiles", "[gemm]") {
  for (int flags = 0; flags < 4; ++flags) {
    const bool ta = flags & 1, tb = flags & 2;
    check_gemm<float>(1, 1, 1, 65, 129, 161, ta, tb, 0, 1);
    check_gemm<float>(1, 1, 1, 13, 63, 320, ta, tb, 1, 0);
    check_gemm<double>(1, 1, 1, 25, 31, 159, ta, tb, 1, 2);
    check_gemm<float>(1, 1, 1, 1, 300, 500, ta, tb, 1, 1);
    check_gemm<float>(1, 1, 1, 300, 1, 500, ta, tb, 0, 1);
    check_gemm<double>(1, 1, 1, 300, 1, 50, ta, tb, 1, 0);
  }
}

TEST_CASE("batched gemm, with operands shared by the batch", "[gemm]") {
  for (int flags = 0; flags < 4; ++flags) {
    const bool ta = flags & 1, tb = flags & 2;
    for (Index m : {1, 3, 8}) {
      for (Index gap : {0, 2}) {
        check_gemm<float>(3, 3, 3, m, 5, 4, ta, tb, 0, gap);
        check_gemm<float>(3, 3, 1, m, 5, 4, ta, tb, 1, gap);
        check_gemm<float>(3, 1, 3, m, 5, 4, ta, tb, 0, gap);
        check_gemm<double>(3, 1, 1, m, 1, 4, ta, tb, 2, gap);
        check_gemm<double>(3, 3, 1, m, 5, 0, ta, tb, 2, gap);
      }
    }
  }
}

TEST_CASE("gemm reads no stride of a dimension of size one", "[gemm]") {
  Array<float> a({1, 3}, {1, 2, 3});
  Array<float> b({3, 1}, {4, 5, 6});
  for (Index odd : {0, 1, 3, 1000, -5}) {
    a.strides[0] = b.strides[1] = odd;
    Array<float> inner({1, 1});
    inner.strides[0] = odd;
    Stream stream;
    cpu_backend().gemm(stream, inner.view(), a.view(), b.view(), 0);
    CHECK(inner[0] == 32);
    Array<float> outer({3, 3});
    cpu_backend().gemm(stream, outer.view(), b.view(), a.view(), 0);
    CHECK(outer.data == std::vector<float>{4, 8, 12, 5, 10, 15, 6, 12, 18});
  }
}

TEST_CASE("gemm gives the same bits on any number of threads", "[gemm]") {
  Array<float> a({300, 200}), b({200, 250});
  a.normal(1), b.normal(2);
  Array<float> results[2] = {Array<float>({300, 250}), Array<float>({300, 250})};
  for (int i = 0; i < 2; ++i) {
    Stream stream;
    stream.threads = i == 0 ? 1 : 3;
    cpu_backend().gemm(stream, results[i].view(), a.view(), b.view(), 0);
  }
  CHECK(results[0].same_bits(results[1]));
  for (Index i = 0; i < 300; i += 37) {
    for (Index j = 0; j < 250; j += 23) {
      double sum = 0;
      for (Index l = 0; l < 200; ++l) sum += static_cast<double>(a[i * 200 + l]) * static_cast<double>(b[l * 250 + j]);
      CHECK(std::abs(static_cast<double>(results[0][i * 250 + j]) - sum) < 1e-4);
    }
  }
}

TEST_CASE("conv2d and its gradients equal seven loops", "[conv]") {
  for (Index sh : {1, 2}) {
    for (Index sw : {1, 3}) {
      for (Index ph : {0, 1}) {
        for (Index pw : {0, 2}) {
          for (Index dh : {1, 2}) {
            for (Index dw : {1, 2}) {
              for (Index groups : {1, 2}) {
                for (Index kernel : {1, 2, 3}) {
                  const Geometry g{2, groups, 2, 3, 6, 5, kernel, 4 - kernel, {{sh, sw}, {ph, pw}, {dh, dw}, groups}};
                  if (!g.fits()) continue;
                  check_convolution<float>(g, kernel == 2);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("conv2d over blocks of images, rows and channels", "[conv]") {
  check_convolution<float>({70, 1, 1, 4, 8, 8, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}});     // several images to a block
  check_convolution<float>({67, 2, 3, 5, 4, 4, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 2}});     // and a last one that is short
  check_convolution<float>({2, 1, 40, 3, 30, 31, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}});   // several blocks to an image
  check_convolution<double>({1, 1, 35, 2, 20, 33, 3, 3, {{2, 1}, {1, 0}, {1, 1}, 1}});  // channel blocks
  check_convolution<double>({3, 1, 5, 6, 16, 20, 1, 1, {}});                            // no unfolding
  check_convolution<double>({9, 1, 5, 6, 3, 3, 1, 1, {}}, false);
  check_convolution<float>({3, 4, 1, 1, 9, 9, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 4}});  // depthwise
  check_convolution<float>({2, 1, 1, 1, 3, 3, 3, 3, {{1, 1}, {3, 3}, {1, 1}, 1}});  // windows in the padding alone
}

TEST_CASE("conv2d of nothing", "[conv]") {
  check_convolution<float>({0, 1, 2, 3, 5, 5, 3, 3, {}});
  check_convolution<float>({2, 1, 0, 3, 5, 5, 3, 3, {}});
  check_convolution<float>({2, 1, 2, 0, 5, 5, 3, 3, {}});
  check_convolution<float>({2, 1, 2, 0, 20, 20, 1, 1, {}});
}

TEST_CASE("conv2d gives the same bits on any number of threads", "[conv]") {
  const Geometry cases[] = {{64, 1, 3, 8, 8, 8, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}},
                            {2, 1, 40, 12, 30, 30, 3, 3, {}},
                            {5, 2, 24, 8, 12, 12, 1, 1, {{1, 1}, {0, 0}, {1, 1}, 2}}};
  for (const Geometry& g : cases) {
    Convolution<float> one(g);
    one.x.normal(1), one.w.normal(2), one.gy.normal(3);
    Convolution<float> three = one;
    one.run(g, 1, true);
    three.run(g, 3, true);
    CHECK(one.y.same_bits(three.y));
    CHECK(one.gx.same_bits(three.gx));
    CHECK(one.gw.same_bits(three.gw));
  }
}
