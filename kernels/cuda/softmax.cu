// Softmax and log-softmax over any dimension, with their gradients.
//
//   y = exp(x - max) / sum,  or  x - max - log(sum),  with sum = sum of exp(x - max)
//   gx = y (g - sum of g y), or  g - exp(y) (sum of g)
//
// Along the innermost dimension a warp or a block takes a row. A row that fits its registers is read once and written
// once; of a longer one, maximum and sum are found together in a first pass (Milakov and Gimelshein 2018), and it is
// read again to be written. Along another dimension neighbouring threads take neighbouring columns, and elements are
// read twice. Sums run in T over a thread's tile and in double over these, in an order that depends on the shape and on
// alignment only. A row of -inf, and one with +inf or NaN, becomes NaN.

#include "cuda_backend.h"
#include "rows.cuh"

namespace tandem::kernels::cuda {
namespace {

template <class T, int Threads>
__global__ void __launch_bounds__(RowGroup<Threads>::kThreads, 1)
    softmax_rows(std::int64_t n, std::int64_t c, const T* in, T* out, bool log, bool packed) {
  using Tile = RowTile<T, Threads>;
  using Group = RowGroup<Threads>;
  for (std::int64_t row = Group::first(); row < n; row += Group::step()) {
    const T* x = in + row * c;
    T* y = out + row * c;
    if (Threads == kRowWarp || c <= Tile::kSize) {  // as launch_rows() chooses
      Tile tile;
      tile.load(x, static_cast<int>(c), packed, MaxSum<T>::kLowest);
      const T max = Group::max(tile.max());
      if (log) {
        Tile powers = tile;
        const T log_sum = static_cast<T>(math::log(Group::sum(powers.exponentiate(max))));
        tile.each([&](T& v) { v = v - max - log_sum; });
      } else {
        const T scale = static_cast<T>(1 / Group::sum(tile.exponentiate(max)));
        tile.each([&](T& v) { v *= scale; });
      }
      tile.store(y, static_cast<int>(c), packed);
    } else {
      const MaxSum<T> all = max_sum_of_row<T, Threads>(x, c, packed);
      const T max = all.max, shift = static_cast<T>(log ? math::log(all.total()) : 1 / all.total());
      for (std::int64_t base = 0; base < c; base += Tile::kSize) {
        Tile tile;
        tile.load(x + base, Tile::count(c, base), packed, T(0));
        if (log) {
          tile.each([&](T& v) { v = v - max - shift; });
        } else {
          tile.each([&](T& v) { v = math::exp(v - max) * shift; });
        }
        tile.store(y + base, Tile::count(c, base), packed);
      }
    }
  }
}

template <class T, int Threads>
__global__ void __launch_bounds__(RowGroup<Threads>::kThreads, RowGroup<Threads>::kResident)
    softmax_backward_rows(std::int64_t n, std::int64_t c, const T* g, const T* y, T* gx, bool log, bool packed) {
  using Tile = RowTile<T, Threads>;
  using Group = RowGroup<Threads>;
  for (std::int64_t row = Group::first(); row < n; row += Group::step()) {
    const std::int64_t at = row * c;
    const bool whole = c <= Tile::kSize;
    Tile gs, ys;
    double own = 0;
    for (std::int64_t base = 0; base < c; base += Tile::kSize) {
      gs.load(g + at + base, Tile::count(c, base), packed, T(0));
      ys.load(y + at + base, Tile::count(c, base), packed, T(0));
      T part = 0;
      Tile::pairs(gs, ys, [&](T& gv, T yv) { part += log ? gv : gv * yv; });
      own += static_cast<double>(part);
    }
    const T sum = static_cast<T>(Group::sum(own));
    for (std::int64_t base = 0; base < c; base += Tile::kSize) {
      if (!whole) {
        gs.load(g + at + base, Tile::count(c, base), packed, T(0));
        ys.load(y + at + base, Tile::count(c, base), packed, T(0));
      }
      if (log) {
        Tile::pairs(gs, ys, [&](T& gv, T yv) { gv -= math::exp(yv) * sum; });
      } else {
        Tile::pairs(gs, ys, [&](T& gv, T yv) { gv = yv * (gv - sum); });
      }
      gs.store(gx + at + base, Tile::count(c, base), packed);
    }
  }
}

/// A contiguous tensor as (outer, c, inner) around dimension `dim`, for blocks of `width` columns times some rows.
struct Split {
  Split(const View& v, int dim) : c(v.shape[dim]) {
    for (int i = 0; i < dim; ++i) outer *= v.shape[i];
    for (int i = dim + 1; i < v.ndim; ++i) inner *= v.shape[i];
    width = power_of_two_for(inner, kWarp);
    strips = ceil_div(inner, width);
  }
  std::int64_t outer = 1, c, inner = 1;
  int width;
  std::int64_t strips;
};

/// The rows that a thread of a column kernel reads at once.
constexpr int kAtOnce = 4;

template <class T>
__global__ void __launch_bounds__(kBlock, 2) softmax_columns(const Split s, const T* in, T* out, bool log) {
  __shared__ T maxima[kBlock];
  __shared__ double sums[kBlock];
  const int t = static_cast<int>(threadIdx.x), x = t % s.width, y = t / s.width, height = kBlock / s.width;
  for (std::int64_t strip = blockIdx.x; strip < s.outer * s.strips; strip += gridDim.x) {
    const std::int64_t outer = strip / s.strips, column = (strip - outer * s.strips) * s.width + x;
    const std::int64_t first = outer * s.c * s.inner + column;
    MaxSum<T> own;
    if (column < s.inner) {
      for (std::int64_t row = y; row < s.c; row += kAtOnce * height) {
        T v[kAtOnce];
        T top = MaxSum<T>::kLowest;
        TANDEM_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const std::int64_t i = row + k * height;
          v[k] = i < s.c ? in[first + i * s.inner] : MaxSum<T>::kLowest;
          top = v[k] > top ? v[k] : top;
        }
        own.add(top, [&](auto f) {
          TANDEM_UNROLL
          for (int k = 0; k < kAtOnce; ++k) f(v[k]);
        });
      }
    }
    __syncthreads();  // the last strip's totals may still be read
    maxima[t] = own.max;
    sums[t] = own.sum;
    __syncthreads();
    for (int half = height / 2; half > 0; half /= 2) {
      if (y < half) {
        own.add({maxima[t + half * s.width], sums[t + half * s.width]});
        maxima[t] = own.max;
        sums[t] = own.sum;
      }
      __syncthreads();
    }
    const MaxSum<T> all{maxima[x], sums[x]};
    const T max = all.max, shift = static_cast<T>(log ? math::log(all.total()) : 1 / all.total());
    if (column < s.inner) {
      for (std::int64_t row = y; row < s.c; row += height) {
        const std::int64_t at = first + row * s.inner;
        out[at] = log ? in[at] - max - shift : math::exp(in[at] - max) * shift;
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    softmax_backward_columns(const Split s, const T* g, const T* y, T* gx, bool log) {
  __shared__ double sums[kBlock];
  const int t = static_cast<int>(threadIdx.x), x = t % s.width, first_row = t / s.width, height = kBlock / s.width;
  for (std::int64_t strip = blockIdx.x; strip < s.outer * s.strips; strip += gridDim.x) {
    const std::int64_t outer = strip / s.strips, column = (strip - outer * s.strips) * s.width + x;
    const std::int64_t first = outer * s.c * s.inner + column;
    double own = 0;
    if (column < s.inner) {
      TANDEM_UNROLL_BY(kAtOnce)
      for (std::int64_t row = first_row; row < s.c; row += height) {
        const std::int64_t at = first + row * s.inner;
        own += static_cast<double>(log ? g[at] : g[at] * y[at]);
      }
    }
    __syncthreads();  // the last strip's totals may still be read
    sums[t] = own;
    __syncthreads();
    for (int half = height / 2; half > 0; half /= 2) {
      if (first_row < half) sums[t] += sums[t + half * s.width];
      __syncthreads();
    }
    const T sum = static_cast<T>(sums[x]);
    if (column < s.inner) {
      for (std::int64_t row = first_row; row < s.c; row += height) {
        const std::int64_t at = first + row * s.inner;
        gx[at] = log ? g[at] - math::exp(y[at]) * sum : y[at] * (g[at] - sum);
      }
    }
  }
}

}  // namespace

void CudaBackend::softmax(Stream& stream, const View& out, const View& in, int dim, bool log) const {
  Scope scope(stream, "softmax");
  const Split s(in, dim);
  if (s.outer * s.c * s.inner == 0) return;
  visit_floating(in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = in.as<const T>();
    T* y = out.as<T>();
    if (s.inner == 1) {
      launch_rows<T>(softmax_rows<T, kRowWarp>, softmax_rows<T, kRowBlock>, s.outer, s.c, scope.stream(), s.outer, s.c,
                     x, y, log, rows_packed<T>(s.c, x, y));
    } else {
      launch(softmax_columns<T>, dim3(blocks_for(s.outer * s.strips, 1)), dim3(kBlock), 0, scope.stream(), s, x, y,
             log);
    }
  });
}

void CudaBackend::softmax_backward(Stream& stream, const View& gx, const View& g, const View& y, int dim,
                                   bool log) const {
  Scope scope(stream, "softmax_backward");
  const Split s(y, dim);
  if (s.outer * s.c * s.inner == 0) return;
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *gs = g.as<const T>(), *ys = y.as<const T>();
    T* out = gx.as<T>();
    if (s.inner == 1) {
      launch_rows<T>(softmax_backward_rows<T, kRowWarp>, softmax_backward_rows<T, kRowBlock>, s.outer, s.c,
                     scope.stream(), s.outer, s.c, gs, ys, out, log, rows_packed<T>(s.c, gs, ys, out));
    } else {
      launch(softmax_backward_columns<T>, dim3(blocks_for(s.outer * s.strips, 1)), dim3(kBlock), 0, scope.stream(), s,
             gs, ys, out, log);
    }
  });
}

}  // namespace tandem::kernels::cuda
