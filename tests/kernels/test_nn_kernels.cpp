// Softmax, pooling, normalisation and indexing against plain formulas.

#include <cmath>

#include "../catch.h"
#include "array.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

using Index = std::int64_t;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class T>
double tolerance() {
  return std::is_same_v<T, float> ? 1e-5 : 1e-12;
}

/// The largest |a - b| / (1 + |b|).
template <class T>
double distance(const Array<T>& a, const std::vector<double>& b) {
  if (a.data.size() != b.size()) return kInf;
  double largest = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(static_cast<double>(a.data[i]) - b[i]) / (1 + std::abs(b[i]));
    if (!(d <= largest)) largest = d;
  }
  return largest;
}

template <class T>
double d(T v) {
  return static_cast<double>(v);
}

struct Softmaxed {
  std::vector<double> y, gx;
};

/// Softmax and its gradient of x (outer, c, inner) in double.
template <class T>
Softmaxed plain_softmax(const Array<T>& x, const Array<T>& g, bool log) {
  const Index outer = x.shape[0], c = x.shape[1], inner = x.shape[2];
  Softmaxed r{std::vector<double>(x.data.size()), std::vector<double>(x.data.size())};
  for (Index o = 0; o < outer; ++o) {
    for (Index i = 0; i < inner; ++i) {
      const auto at = [&](Index j) { return static_cast<std::size_t>((o * c + j) * inner + i); };
      double max = -kInf, sum = 0, dot = 0;
      for (Index j = 0; j < c; ++j) max = std::max(max, d(x.data[at(j)]));
      for (Index j = 0; j < c; ++j) sum += std::exp(d(x.data[at(j)]) - max);
      for (Index j = 0; j < c; ++j) {
        const double p = std::exp(d(x.data[at(j)]) - max) / sum;
        r.y[at(j)] = log ? d(x.data[at(j)]) - max - std::log(sum) : p;
        dot += d(g.data[at(j)]) * (log ? 1 : p);
      }
      for (Index j = 0; j < c; ++j) {
        const double p = std::exp(d(x.data[at(j)]) - max) / sum;
        r.gx[at(j)] = log ? d(g.data[at(j)]) - p * dot : p * (d(g.data[at(j)]) - dot);
      }
    }
  }
  return r;
}

template <class T>
void check_softmax(Index outer, Index c, Index inner, bool log) {
  CAPTURE(outer, c, inner, log);
  Array<T> x({outer, c, inner}), g({outer, c, inner});
  x.normal(1, 0, 5), g.normal(2);
  const Softmaxed expected = plain_softmax(x, g, log);
  Array<T> first_y = x, first_gx = x;
  for (int threads : {1, 3}) {
    Array<T> y({outer, c, inner}), gx({outer, c, inner});
    Stream stream;
    stream.threads = threads;
    cpu_backend().softmax(stream, y.view(), x.view(), 1, log);
    cpu_backend().softmax_backward(stream, gx.view(), g.view(), y.view(), 1, log);
    CHECK(distance(y, expected.y) < tolerance<T>());
    CHECK(distance(gx, expected.gx) < tolerance<T>());
    if (threads == 1) {
      first_y = y, first_gx = gx;
    } else {
      CHECK(first_y.same_bits(y));
      CHECK(first_gx.same_bits(gx));
    }
  }
}

/// x, weights and gradient for normalisation of (n, c, inner), and the results in double.
struct Normed {
  Normed(Index n, Index c, Index inner, const std::vector<double>& x, const std::vector<double>& g,
         const std::vector<double>& w, const std::vector<double>& b, double eps)
      : mean(static_cast<std::size_t>(c)), var(mean), gw(mean), gb(mean), y(x.size()), gx(x.size()) {
    const double count = d(n * inner);
    for (Index j = 0; j < c; ++j) {
      const auto jj = static_cast<std::size_t>(j);
      const auto each = [&](auto&& f) {
        for (Index i = 0; i < n; ++i) {
          for (Index l = 0; l < inner; ++l) f(static_cast<std::size_t>((i * c + j) * inner + l));
        }
      };
      each([&](std::size_t i) { mean[jj] += x[i] / count; });
      each([&](std::size_t i) { var[jj] += (x[i] - mean[jj]) * (x[i] - mean[jj]) / count; });
      const double inv = 1 / std::sqrt(var[jj] + eps);
      each([&](std::size_t i) {
        const double normal = (x[i] - mean[jj]) * inv;
        y[i] = normal * w[jj] + b[jj];
        gw[jj] += g[i] * normal;
        gb[jj] += g[i];
      });
      each([&](std::size_t i) {
        gx[i] = w[jj] * inv * (g[i] - gb[jj] / count - (x[i] - mean[jj]) * inv * gw[jj] / count);
      });
    }
  }
  std::vector<double> mean, var, gw, gb, y, gx;
};

template <class T>
std::vector<double> doubles(const Array<T>& a) {
  return std::vector<double>(a.data.begin(), a.data.end());
}

template <class T>
void check_batch_norm(Index n, Index c, Index inner) {
  CAPTURE(n, c, inner);
  Array<T> x({n, c, inner}), g({n, c, inner}), w({c}), b({c}), mean({c}), var({c});
  x.normal(1, 2, 3), g.normal(2), w.normal(3), b.normal(4);
  const double eps = 1e-5;
  const Normed expected(n, c, inner, doubles(x), doubles(g), doubles(w), doubles(b), eps);
  std::vector<T> bits[2];
  for (int threads : {1, 3}) {
    Stream stream;
    stream.threads = threads;
    const Backend& backend = cpu_backend();
    backend.channel_stats(stream, mean.view(), var.view(), x.view());
    CHECK(distance(mean, expected.mean) < tolerance<T>());
    CHECK(distance(var, expected.var) < tolerance<T>());
    Array<T> invstd({c}), y({n, c, inner}), gx({n, c, inner}), gw({c}), gb({c});
    for (Index j = 0; j < c; ++j) invstd[j] = static_cast<T>(1 / std::sqrt(d(var[j]) + eps));
    backend.batch_norm(stream, y.view(), x.view(), mean.view(), invstd.view(), w.view(), b.view());
    CHECK(distance(y, expected.y) < tolerance<T>());
    backend.batch_norm_backward(stream, gx.view(), gw.view(), gb.view(), g.view(), x.view(), mean.view(), invstd.view(),
                                w.view(), true);
    CHECK(distance(gx, expected.gx) < 10 * tolerance<T>());
    CHECK(distance(gw, expected.gw) < 10 * tolerance<T>());
    CHECK(distance(gb, expected.gb) < 10 * tolerance<T>());
    std::vector<T>& all = bits[threads == 1 ? 0 : 1];
    for (const Array<T>* a : {&mean, &var, &y, &gx, &gw, &gb}) all.insert(all.end(), a->data.begin(), a->data.end());

    // Fixed statistics, no weights, and outputs that nobody wants.
    backend.batch_norm(stream, y.view(), x.view(), mean.view(), invstd.view(), w.null(), b.null());
    backend.batch_norm_backward(stream, gx.view(), gw.null(), gb.null(), g.view(), x.view(), mean.view(), invstd.view(),
                                w.null(), false);
    for (Index i = 0; i < x.size(); ++i) {
      const Index j = i / inner % c;
      REQUIRE(d(y[i]) == Approx((d(x[i]) - d(mean[j])) * d(invstd[j])).epsilon(1e-5).margin(1e-6));
      REQUIRE(d(gx[i]) == Approx(d(g[i]) * d(invstd[j])).epsilon(1e-5));
    }
    backend.batch_norm_backward(stream, gx.null(), gw.view(), gb.null(), g.view(), x.view(), mean.view(), invstd.view(),
                                w.view(), false);
    CHECK(distance(gw, expected.gw) < 10 * tolerance<T>());
  }
  CHECK(bits[0] == bits[1]);
}

template <class T>
void check_layer_norm(Index n, Index c) {
  CAPTURE(n, c);
  Array<T> x({n, c}), g({n, c}), w({c}), b({c});
  x.normal(1, 2, 3), g.normal(2), w.normal(3), b.normal(4);
  const double eps = 1e-5;
  std::vector<double> y(x.data.size()), gx(x.data.size()), gw(w.data.size()), gb(w.data.size()), means;
  for (Index i = 0; i < n; ++i) {
    double mean = 0, var = 0, sum = 0, dot = 0;
    for (Index j = 0; j < c; ++j) mean += d(x[i * c + j]) / d(c);
    for (Index j = 0; j < c; ++j) var += (d(x[i * c + j]) - mean) * (d(x[i * c + j]) - mean) / d(c);
    const double inv = 1 / std::sqrt(var + eps);
    means.push_back(mean);
    for (Index j = 0; j < c; ++j) {
      const auto at = static_cast<std::size_t>(i * c + j);
      const double normal = (d(x.data[at]) - mean) * inv;
      y[at] = normal * d(w[j]) + d(b[j]);
      gw[static_cast<std::size_t>(j)] += d(g.data[at]) * normal;
      gb[static_cast<std::size_t>(j)] += d(g.data[at]);
      sum += d(g.data[at]) * d(w[j]);
      dot += d(g.data[at]) * d(w[j]) * normal;
    }
    for (Index j = 0; j < c; ++j) {
      const auto at = static_cast<std::size_t>(i * c + j);
      gx[at] = inv * (d(g.data[at]) * d(w[j]) - sum / d(c) - (d(x.data[at]) - mean) * inv * dot / d(c));
    }
  }
  std::vector<T> bits[2];
  for (int threads : {1, 3}) {
    Stream stream;
    stream.threads = threads;
    Array<T> mean({n}), invstd({n}), out({n, c}), out_gx({n, c}), out_gw({c}), out_gb({c});
    const Backend& backend = cpu_backend();
    backend.layer_norm(stream, out.view(), mean.view(), invstd.view(), x.view(), w.view(), b.view(), eps);
    backend.layer_norm_backward(stream, out_gx.view(), out_gw.view(), out_gb.view(), g.view(), x.view(), mean.view(),
                                invstd.view(), w.view());
    CHECK(distance(mean, means) < tolerance<T>());
    CHECK(distance(out, y) < tolerance<T>());
    CHECK(distance(out_gx, gx) < 10 * tolerance<T>());
    CHECK(distance(out_gw, gw) < 10 * tolerance<T>());
    CHECK(distance(out_gb, gb) < 10 * tolerance<T>());
    std::vector<T>& all = bits[threads == 1 ? 0 : 1];
    for (const Array<T>* a : {&mean, &invstd, &out, &out_gx, &out_gw, &out_gb}) {
      all.insert(all.end(), a->data.begin(), a->data.end());
    }
    backend.layer_norm(stream, out.view(), mean.view(), invstd.view(), x.view(), w.null(), b.null(), eps);
    for (Index i = 0; i < x.size(); ++i) {
      REQUIRE(d(out[i]) ==
              Approx((d(x[i]) - means[static_cast<std::size_t>(i / c)]) * d(invstd[i / c])).epsilon(1e-4).margin(1e-5));
    }
  }
  CHECK(bits[0] == bits[1]);
}

/// Pooling by definition; calls f(plane, output place in the plane, input places of its window).
template <class F>
void for_each_window(Index planes, Index h, Index w, Index oh, Index ow, const Pool2dArgs& a, F&& f) {
  for (Index p = 0; p < planes; ++p) {
    for (Index i = 0; i < oh; ++i) {
      for (Index j = 0; j < ow; ++j) {
        std::vector<Index> window;
        for (Index r = 0; r < a.kernel[0]; ++r) {
          for (Index q = 0; q < a.kernel[1]; ++q) {
            const Index y = i * a.stride[0] - a.padding[0] + r, x = j * a.stride[1] - a.padding[1] + q;
            if (y >= 0 && y < h && x >= 0 && x < w) window.push_back(y * w + x);
          }
        }
        f(p, i * ow + j, window);
      }
    }
  }
}

void check_pooling(const Pool2dArgs& a, Index h, Index w) {
  CAPTURE(a.kernel[0], a.kernel[1], a.stride[0], a.stride[1], a.padding[0], a.padding[1], h, w);
  const Index n = 2, c = 3, planes = n * c;
  const Index oh = (h + 2 * a.padding[0] - a.kernel[0]) / a.stride[0] + 1;
  const Index ow = (w + 2 * a.padding[1] - a.kernel[1]) / a.stride[1] + 1;
  Array<float> x({n, c, h, w}), y({n, c, oh, ow}), gy({n, c, oh, ow}), gx({n, c, h, w});
  Array<Index> index({n, c, oh, ow});
  x.integers(1, -3, 3), gy.integers(2);
  for (Index i = 0; i < x.size(); i += 17) x[i] = std::numeric_limits<float>::quiet_NaN();
  Stream stream;
  stream.threads = 2;
  const Backend& backend = cpu_backend();
  backend.max_pool2d(stream, y.view(), index.view(), x.view(), a);
  backend.max_pool2d_backward(stream, gx.view(), gy.view(), index.view());
  std::vector<float> expected_gx(x.data.size());
  Index wrong = 0;
  for_each_window(planes, h, w, oh, ow, a, [&](Index p, Index o, const std::vector<Index>& window) {
    Index at = window[0];
    for (Index i : window) {
      const float v = x[p * h * w + i], best = x[p * h * w + at];
      if (best == best && (v > best || v != v)) at = i;
    }
    wrong += index[p * oh * ow + o] != at;
    wrong += std::memcmp(&y[p * oh * ow + o], &x[p * h * w + at], sizeof(float)) != 0;
    expected_gx[static_cast<std::size_t>(p * h * w + at)] += gy[p * oh * ow + o];
  });
  CHECK(wrong == 0);
  CHECK(gx.data == expected_gx);
  Array<float> taken({n, c, oh, ow});
  backend.max_pool2d_take(stream, taken.view(), x.view(), index.view());
  CHECK(taken.same_bits(y));

  x.integers(3);
  backend.avg_pool2d(stream, y.view(), x.view(), a);
  backend.avg_pool2d_backward(stream, gx.view(), gy.view(), a);
  std::fill(expected_gx.begin(), expected_gx.end(), 0.0F);
  const float count = static_cast<float>(a.kernel[0] * a.kernel[1]);
  for_each_window(planes, h, w, oh, ow, a, [&](Index p, Index o, const std::vector<Index>& window) {
    float sum = 0;
    for (Index i : window) {
      sum += x[p * h * w + i];
      expected_gx[static_cast<std::size_t>(p * h * w + i)] += gy[p * oh * ow + o] / count;
    }
    wrong += y[p * oh * ow + o] != sum / count;
  });
  CHECK(wrong == 0);
  for (Index i = 0; i < gx.size(); ++i) {
    REQUIRE(gx[i] == Approx(expected_gx[static_cast<std::size_t>(i)]).margin(1e-5));
  }
}

}  // namespace

TEST_CASE("softmax and log_softmax with their gradients", "[softmax]") {
  for (bool log : {false, true}) {
    for (Index c : {1, 2, 10, 37, 300, 1000}) {
      check_softmax<float>(5, c, 1, log);
      check_softmax<double>(70, c, 1, log);
      check_softmax<float>(2, c, 7, log);
      check_softmax<double>(2, c, 130, log);
    }
    check_softmax<float>(0, 3, 1, log);
    check_softmax<float>(3, 0, 1, log);
    check_softmax<float>(3, 4, 0, log);
  }
}

TEST_CASE("softmax of extreme rows", "[softmax]") {
  for (Index inner : {1, 2}) {
    const Index rows = 4, c = 3;
    const double values[rows][c] = {{1000, 0, -1000}, {-kInf, -kInf, -kInf}, {0, kInf, 0}, {0, kNan, 0}};
    Array<float> x({rows, c, inner}), y({rows, c, inner}), z({rows, c, inner});
    for (Index i = 0; i < x.size(); ++i) x[i] = static_cast<float>(values[i / inner / c][i / inner % c]);
    Stream stream;
    cpu_backend().softmax(stream, y.view(), x.view(), 1, false);
    cpu_backend().softmax(stream, z.view(), x.view(), 1, true);
    for (Index i = 0; i < inner; ++i) {
      CHECK(y[i] == 1.0F);
      CHECK(y[inner + i] == 0.0F);
      CHECK(y[2 * inner + i] == 0.0F);
      CHECK(z[i] == 0.0F);
      CHECK(z[inner + i] == -1000.0F);
      CHECK(z[2 * inner + i] == -2000.0F);
    }
    for (Index i = c * inner; i < x.size(); ++i) {
      CHECK(std::isnan(y[i]));
      CHECK(std::isnan(z[i]));
    }
  }
}

TEST_CASE("cross entropy and its gradient", "[softmax]") {
  const Index n = 40, c = 11, ignore = -100;
  Array<double> x({n, c}), g({n}), loss({n}), lse({n}), gx({n, c});
  Array<Index> target({n});
  x.normal(1, 0, 4), g.normal(2), target.integers(3, 0, 10);
  target[7] = ignore;
  Stream stream;
  stream.threads = 3;
  const Backend& backend = cpu_backend();
  backend.cross_entropy(stream, loss.view(), lse.view(), x.view(), target.view(), ignore);
  backend.cross_entropy_backward(stream, gx.view(), g.view(), x.view(), lse.view(), target.view(), ignore);
  CHECK_FALSE(stream.index_fault.set);
  for (Index i = 0; i < n; ++i) {
    double sum = 0;
    for (Index j = 0; j < c; ++j) sum += std::exp(x[i * c + j]);
    CHECK(lse[i] == Approx(std::log(sum)).epsilon(1e-12));
    CHECK(loss[i] == (i == 7 ? Approx(0) : Approx(std::log(sum) - x[i * c + target[i]]).epsilon(1e-12).margin(1e-12)));
    for (Index j = 0; j < c; ++j) {
      const double p = std::exp(x[i * c + j]) / sum - (target[i] == j ? 1 : 0);
      CHECK(gx[i * c + j] == Approx(i == 7 ? 0 : p * g[i]).epsilon(1e-11).margin(1e-14));
    }
  }
}

TEST_CASE("cross entropy of extreme logits and bad targets", "[softmax]") {
  Array<float> x({4, 3}, {1000, 0, -1000, 1, 2, 3, 1, 2, 3, 1, 2, 3});
  Array<float> loss({4}), lse({4}), gx({4, 3});
  Array<float> g({4}, {1, 1, 1, 1});
  Array<Index> target({4}, {1, 255, 3, -1});
  Stream stream;
  const Backend& backend = cpu_backend();
  backend.cross_entropy(stream, loss.view(), lse.view(), x.view(), target.view(), 255);
  CHECK(loss.data == std::vector<float>{1000, 0, 0, 0});
  CHECK(stream.index_fault.set);
  CHECK(stream.index_fault.position == 2);
  CHECK(stream.index_fault.value == 3);
  CHECK(stream.index_fault.limit == 3);
  backend.cross_entropy_backward(stream, gx.view(), g.view(), x.view(), lse.view(), target.view(), 255);
  CHECK(gx.data == std::vector<float>{1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("pooling with every kernel, stride and padding", "[pool]") {
  for (Index kh : {1, 2, 3}) {
    for (Index kw : {1, 2, 3}) {
      for (Index s : {1, 2, 3}) {
        for (Index ph = 0; ph <= kh / 2; ++ph) {
          for (Index pw = 0; pw <= kw / 2; ++pw) {
            check_pooling({{kh, kw}, {s, 4 - s}, {ph, pw}}, 7, 6);
            check_pooling({{kh, kw}, {s, s}, {ph, pw}}, 8, 9);
          }
        }
      }
    }
  }
}

TEST_CASE("batch norm", "[norm]") {
  for (Index n : {2, 19}) {
    for (Index c : {1, 5, 70}) {
      for (Index inner : {1, 2, 16, 81}) {
        check_batch_norm<float>(n, c, inner);
        check_batch_norm<double>(n, c, inner);
      }
    }
  }
}

TEST_CASE("channel statistics of one value, and far from zero", "[norm]") {
  Stream stream;
  Array<float> one({1, 2, 1}, {3, -4}), mean({2}), var({2});
  cpu_backend().channel_stats(stream, mean.view(), var.view(), one.view());
  CHECK(mean.data == std::vector<float>{3, -4});
  CHECK(var.data == std::vector<float>{0, 0});
  for (Index inner : {1, 100}) {
    Array<float> x({10000 / inner, 2, inner});
    x.normal(1, 1e4, 1);
    double sum[2] = {}, squares[2] = {};
    for (Index i = 0; i < x.size(); ++i) sum[i / inner % 2] += d(x[i]) / 10000;
    for (Index i = 0; i < x.size(); ++i) squares[i / inner % 2] += std::pow(d(x[i]) - sum[i / inner % 2], 2) / 10000;
    cpu_backend().channel_stats(stream, mean.view(), var.view(), x.view());
    for (Index j : {0, 1}) {
      CHECK(d(mean[j]) == Approx(sum[j]).epsilon(1e-7));
      CHECK(d(var[j]) == Approx(squares[j]).epsilon(1e-5));
    }
  }
}

TEST_CASE("layer norm", "[norm]") {
  for (Index n : {0, 1, 3, 40}) {
    for (Index c : {1, 6, 16, 33, 700}) {
      check_layer_norm<float>(n, c);
      check_layer_norm<double>(n, c);
    }
  }
}

TEST_CASE("index_select and index_add along every dimension and layout", "[index]") {
  const Backend& backend = cpu_backend();
  for (int dim = 0; dim < 3; ++dim) {
    for (bool transposed : {false, true}) {
      for (int threads : {1, 3}) {
        CAPTURE(dim, transposed, threads);
        Stream stream;
        stream.threads = threads;
        Array<float> in({5, 6, 70});
        in.integers(1);
        const Index count = 4;
        std::vector<Index> shape = in.shape;
        shape[static_cast<std::size_t>(dim)] = count;
        Array<float> out(shape), sum(in.shape);
        Array<Index> index({count}, {3, 0, 3, 4});
        if (transposed) {
          std::swap(in.shape[0], in.shape[1]), std::swap(in.strides[0], in.strides[1]);
          out = Array<float>({in.shape[0], in.shape[1], in.shape[2]});
          shape = in.shape;
          shape[static_cast<std::size_t>(dim)] = count;
          out = Array<float>(shape);
          sum = Array<float>(in.shape);
        }
        backend.index_select(stream, out.view(), in.view(), dim, index.view());
        CHECK_FALSE(stream.index_fault.set);
        std::fill(sum.data.begin(), sum.data.end(), 1.0F);
        backend.index_add(stream, sum.view(), dim, index.view(), out.view());
        std::vector<float> expected(sum.data.size(), 1.0F);
        Index wrong = 0;
        for (Index i = 0; i < shape[0]; ++i) {
          for (Index j = 0; j < shape[1]; ++j) {
            for (Index k = 0; k < shape[2]; ++k) {
              Index at[3] = {i, j, k};
              at[dim] = index[at[dim]];
              const float v = in[at[0] * in.strides[0] + at[1] * in.strides[1] + at[2] * in.strides[2]];
              wrong += out[i * out.strides[0] + j * out.strides[1] + k * out.strides[2]] != v;
              const Index to = at[0] * sum.strides[0] + at[1] * sum.strides[1] + at[2] * sum.strides[2];
              expected[static_cast<std::size_t>(to)] += v;
            }
          }
        }
        CHECK(wrong == 0);
        CHECK(sum.data == expected);
      }
    }
  }
}

TEST_CASE("gather and scatter_add along every dimension", "[index]") {
  const Backend& backend = cpu_backend();
  for (int dim = 0; dim < 3; ++dim) {
    CAPTURE(dim);
    Stream stream;
    stream.threads = 3;
    Array<std::int32_t> in({4, 4, 4}), out({3, 2, 3}), sum({4, 4, 4});
    in.integers(1, -100, 100);
    Array<Index> index({3, 2, 3});
    index.integers(2, 0, 3);
    backend.gather(stream, out.view(), in.view(), dim, index.view());
    std::fill(sum.data.begin(), sum.data.end(), 0);
    backend.scatter_add(stream, sum.view(), dim, index.view(), out.view());
    CHECK_FALSE(stream.index_fault.set);
    std::vector<std::int32_t> expected(sum.data.size());
    for (Index i = 0; i < out.size(); ++i) {
      Index at[3] = {i / 6, i / 3 % 2, i % 3};
      at[dim] = index[i];
      const Index place = at[0] * 16 + at[1] * 4 + at[2];
      CHECK(out[i] == in[place]);
      expected[static_cast<std::size_t>(place)] += out[i];
    }
    CHECK(sum.data == expected);
  }
}

TEST_CASE("bad indices are reported, and touch nothing", "[index]") {
  const Backend& backend = cpu_backend();
  const auto check_fault = [](const Stream& stream) {
    CHECK(stream.index_fault.set);
    CHECK(stream.index_fault.position == 1);
    CHECK(stream.index_fault.value == 3);
    CHECK(stream.index_fault.limit == 3);
  };
  Array<double> in({3, 2}, {1, 2, 3, 4, 5, 6});
  Array<Index> index({3}, {2, 3, -1});
  {
    Stream stream;
    Array<double> out({3, 2});
    backend.index_select(stream, out.view(), in.view(), 0, index.view());
    check_fault(stream);
    CHECK(out.data == std::vector<double>{5, 6, 0, 0, 0, 0});
    Array<double> sum({3, 2}, {0, 0, 0, 0, 0, 0});
    Stream other;
    backend.index_add(other, sum.view(), 0, index.view(), in.view());
    check_fault(other);
    CHECK(sum.data == std::vector<double>{0, 0, 0, 0, 1, 2});
  }
  Array<Index> places({3, 1}, {2, 3, -1});
  Array<double> column({3, 1}, {7, 8, 9});
  {
    Stream stream;
    Array<double> out({3, 1});
    backend.gather(stream, out.view(), in.view(), 0, places.view());
    check_fault(stream);
    CHECK(out.data == std::vector<double>{5, 0, 0});
    Array<double> sum({3, 2}, {0, 0, 0, 0, 0, 0});
    Stream other;
    backend.scatter_add(other, sum.view(), 0, places.view(), column.view());
    check_fault(other);
    CHECK(sum.data == std::vector<double>{0, 0, 0, 0, 7, 0});
  }
}

TEST_CASE("indexing of nothing", "[index]") {
  const Backend& backend = cpu_backend();
  Stream stream;
  Array<float> in({0, 3}), out({0, 3}), sum({2, 3}, {1, 2, 3, 4, 5, 6});
  Array<Index> none({0}), nowhere({0, 3}), one({1}, {0});
  backend.index_select(stream, out.view(), in.view(), 0, none.view());
  backend.index_add(stream, sum.view(), 0, none.view(), in.view());
  backend.gather(stream, out.view(), in.view(), 0, nowhere.view());
  backend.scatter_add(stream, sum.view(), 0, nowhere.view(), in.view());
  CHECK_FALSE(stream.index_fault.set);
  CHECK(sum.data == std::vector<float>{1, 2, 3, 4, 5, 6});
  Array<float> row({1, 3});
  backend.index_select(stream, row.view(), in.view(), 0, one.view());
  CHECK(stream.index_fault.set);
  CHECK(row.data == std::vector<float>{0, 0, 0});
}
