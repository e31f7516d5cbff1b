// Matrix products and convolutions of CUDA devices against the CPU backend; integer-valued data, so that equality is
// exact whatever the order of sums.

#include "../catch.h"
#include "device_array.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

using Index = std::int64_t;

/// A batch of matrices in memory with room between their lines.
template <class T>
struct Matrices {
  Matrices(Index batch, Index rows, Index cols, bool transposed, Index gap, unsigned seed)
      : memory({batch, transposed ? cols : rows, (transposed ? rows : cols) + gap}), shape{batch, rows, cols} {
    memory.integers(seed);
    const Index ld = (transposed ? rows : cols) + gap;
    strides[0] = batch == 1 ? 0 : memory.strides[0];
    strides[1] = transposed ? 1 : ld;
    strides[2] = transposed ? ld : 1;
  }
  /// The last `ndim` dimensions of the matrices, which lie at `data`.
  View view(void* data, int ndim) const { return {data, shape + 3 - ndim, strides + 3 - ndim, ndim, dtype_of<T>()}; }

  Array<T> memory;
  Index shape[3], strides[3];
};

template <class T>
void check_gemm(Index batch, Index a_batch, Index b_batch, Index m, Index n, Index k, bool ta, bool tb, double beta,
                Index gap) {
  CAPTURE(batch, a_batch, b_batch, m, n, k, ta, tb, beta, gap);
  Matrices<T> a(a_batch, m, k, ta, gap, 1);
  Matrices<T> b(b_batch, k, n, tb, gap, 2);
  Matrices<T> c(batch, m, n, false, gap, 3);
  a.shape[0] = b.shape[0] = batch;
  if (beta == 0) c.memory.clear();
  const int ndim = batch != 1 ? 3 : 2;
  DeviceArray<T> device_a(a.memory), device_b(b.memory), device_c(c.memory);
  Stream stream = device_stream();
  cuda_backend().gemm(stream, c.view(device_c.data(), ndim), a.view(device_a.data(), ndim),
                      b.view(device_b.data(), ndim), beta);
  Stream cpu;
  cpu_backend().gemm(cpu, c.view(c.memory.data.data(), ndim), a.view(a.memory.data.data(), ndim),
                     b.view(b.memory.data.data(), ndim), beta);
  // NaNs in the gaps between rows stay, too.
  CHECK(device_c.host().same_bits(c.memory));
}

struct Geometry {
  Index n, groups, ci, co, h, w, kh, kw;
  Conv2dArgs args;
  Index out(int d) const {
    const Index size = d == 0 ? h : w, kernel = d == 0 ? kh : kw;
    return (size + 2 * args.padding[d] - args.dilation[d] * (kernel - 1) - 1) / args.stride[d] + 1;
  }
  bool fits() const {
    return h + 2 * args.padding[0] > args.dilation[0] * (kh - 1) &&
           w + 2 * args.padding[1] > args.dilation[1] * (kw - 1);
  }
};

template <class T>
struct Results {
  Array<T> y, gx, gw;
};

template <class T>
Results<T> convolve_on_cpu(const Geometry& g, Array<T> x, Array<T> w, Array<T> bias, Array<T> gy, bool with_bias) {
  Results<T> r{gy, x, w};
  Stream stream;
  const Index bytes = cpu_backend().conv2d_workspace(stream, x.view(), w.view(), gy.view(), g.args);
  std::vector<std::byte> workspace(static_cast<std::size_t>(bytes));
  r.y.clear(), r.gx.clear(), r.gw.clear();
  cpu_backend().conv2d(stream, r.y.view(), x.view(), w.view(), with_bias ? bias.view() : bias.null(), g.args,
                       workspace.data());
  cpu_backend().conv2d_input(stream, r.gx.view(), gy.view(), w.view(), g.args, workspace.data());
  cpu_backend().conv2d_weight(stream, r.gw.view(), gy.view(), x.view(), g.args, workspace.data());
  return r;
}

template <class T>
Results<T> convolve_on_gpu(const Geometry& g, const Array<T>& x, const Array<T>& w, const Array<T>& bias,
                           const Array<T>& gy, bool with_bias) {
  Results<T> r{gy, x, w};
  r.y.clear(), r.gx.clear(), r.gw.clear();
  DeviceArray<T> dx(x), dw(w), dbias(bias), dgy(gy), y(r.y), gx(r.gx), gw(r.gw);
  View bias_view = dbias.view();
  if (!with_bias) bias_view.data = nullptr;
  Stream stream = device_stream();
  const Backend& backend = cuda_backend();
  const Index bytes = backend.conv2d_workspace(stream, dx.view(), dw.view(), y.view(), g.args);
  DeviceArray<std::uint8_t> workspace(Array<std::uint8_t>({bytes}));
  backend.conv2d(stream, y.view(), dx.view(), dw.view(), bias_view, g.args, workspace.data());
  backend.conv2d_input(stream, gx.view(), dgy.view(), dw.view(), g.args, workspace.data());
  backend.conv2d_weight(stream, gw.view(), dgy.view(), dx.view(), g.args, workspace.data());
  return {y.host(), gx.host(), gw.host()};
}

template <class T>
void check_convolution(const Geometry& g, bool with_bias = true) {
  CAPTURE(g.n, g.groups, g.ci, g.co, g.h, g.w, g.kh, g.kw, g.args.stride[0], g.args.stride[1], g.args.padding[0],
          g.args.padding[1], g.args.dilation[0], g.args.dilation[1]);
  Array<T> x({g.n, g.groups * g.ci, g.h, g.w}), w({g.groups * g.co, g.ci, g.kh, g.kw}), bias({g.groups * g.co}),
      gy({g.n, g.groups * g.co, g.out(0), g.out(1)});
  x.integers(1), w.integers(2), bias.integers(3), gy.integers(4);
  Results<T> expected = convolve_on_cpu(g, x, w, bias, gy, with_bias);
  Results<T> got = convolve_on_gpu(g, x, w, bias, gy, with_bias);
  CHECK(got.y.data == expected.y.data);
  CHECK(got.gx.data == expected.gx.data);
  CHECK(got.gw.data == expected.gw.data);
}

}  // namespace

TEST_CASE("CUDA gemm equals the CPU's for every layout and small size", "[cuda][gemm]") {
  const Index sizes[] = {0, 1, 2, 7};
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

TEST_CASE("CUDA gemm at larger sizes", "[cuda][gemm]") {
  for (int flags = 0; flags < 4; ++flags) {
    const bool ta = flags & 1, tb = flags & 2;
    check_gemm<float>(1, 1, 1, 65, 129, 161, ta, tb, 0, 1);
    check_gemm<double>(1, 1, 1, 25, 31, 159, ta, tb, 1, 2);
    check_gemm<float>(1, 1, 1, 1, 300, 500, ta, tb, 1, 1);
    check_gemm<float>(1, 1, 1, 300, 1, 500, ta, tb, 0, 1);
  }
}

TEST_CASE("CUDA batched gemm, with operands shared by the batch", "[cuda][gemm]") {
  for (int flags = 0; flags < 4; ++flags) {
    const bool ta = flags & 1, tb = flags & 2;
    for (Index m : {1, 3, 8}) {
      for (Index gap : {0, 2}) {
        check_gemm<float>(3, 3, 3, m, 5, 4, ta, tb, 0, gap);
        check_gemm<float>(3, 3, 1, m, 5, 4, ta, tb, 1, gap);
        check_gemm<float>(3, 1, 3, m, 5, 4, ta, tb, 0, gap);
        check_gemm<double>(3, 1, 1, m, 1, 4, ta, tb, 2, gap);
        check_gemm<double>(3, 3, 1, m, 5, 0, ta, tb, 2, gap);
        check_gemm<double>(0, 0, 0, m, 5, 4, ta, tb, 0, gap);
      }
    }
  }
}

TEST_CASE("CUDA gemm reads no stride of a dimension of size one", "[cuda][gemm]") {
  Array<float> a({1, 3}, {1, 2, 3});
  Array<float> b({3, 1}, {4, 5, 6});
  for (Index odd : {0, 1, 3, 1000, -5}) {
    a.strides[0] = b.strides[1] = odd;
    Array<float> one({1, 1});
    one.strides[0] = odd;
    DeviceArray<float> left(a), right(b), inner(one), outer(Array<float>({3, 3}));
    Stream stream = device_stream();
    cuda_backend().gemm(stream, inner.view(), left.view(), right.view(), 0);
    CHECK(inner.host()[0] == 32);
    cuda_backend().gemm(stream, outer.view(), right.view(), left.view(), 0);
    CHECK(outer.host().data == std::vector<float>{4, 8, 12, 5, 10, 15, 6, 12, 18});
  }
}

TEST_CASE("CUDA conv2d and its gradients equal the CPU's", "[cuda][conv]") {
  for (Index sh : {1, 2}) {
    for (Index sw : {1, 3}) {
      for (Index ph : {0, 1}) {
        for (Index pw : {0, 2}) {
          for (Index dilation : {1, 2}) {
            for (Index groups : {1, 2}) {
              for (Index kernel : {1, 2, 3}) {
                const Geometry g{
                    2, groups, 2, 3, 6, 5, kernel, 4 - kernel, {{sh, sw}, {ph, pw}, {dilation, 3 - dilation}, groups}};
                if (g.fits()) check_convolution<float>(g, kernel == 2);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("CUDA conv2d of other proportions", "[cuda][conv]") {
  check_convolution<float>({70, 1, 1, 4, 8, 8, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}});
  check_convolution<double>({3, 2, 3, 5, 4, 4, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 2}});
  check_convolution<double>({3, 1, 5, 6, 16, 20, 1, 1, {}});
  check_convolution<double>({9, 1, 5, 6, 3, 3, 1, 1, {}}, false);
  check_convolution<float>({3, 4, 1, 1, 9, 9, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 4}});  // depthwise
  check_convolution<float>({2, 1, 1, 1, 3, 3, 3, 3, {{1, 1}, {3, 3}, {1, 1}, 1}});  // windows in the padding alone
}

TEST_CASE("CUDA conv2d of nothing", "[cuda][conv]") {
  check_convolution<float>({0, 1, 2, 3, 5, 5, 3, 3, {}});
  check_convolution<float>({2, 1, 0, 3, 5, 5, 3, 3, {}});
  check_convolution<float>({2, 1, 2, 0, 5, 5, 3, 3, {}});
  check_convolution<float>({2, 1, 1, 2, 0, 4, 1, 1, {{1, 1}, {1, 1}, {1, 1}, 1}});
}
