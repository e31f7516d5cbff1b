// Batched matrix products: reads the layout of the operands, and splits the work.

#include "gemm.h"

#include <algorithm>

#include "cpu_backend.h"
#include "parallel.h"

namespace tandem::kernels::cpu {
namespace {

constexpr std::int64_t kTileWork = std::int64_t{1} << 23;  // multiply-adds that are worth a call of their own
constexpr std::int64_t kMinTile = 128;                     // rows or columns
constexpr std::int64_t kTiles = 16;                        // about as many as that; smaller ones cost more in all

/// The last two dimensions of `v` as a matrix. A dimension of size 0 or 1 has no stride worth reading.
template <class T>
Matrix<T> matrix_of(const View& v) {
  const std::int64_t rows = v.shape[v.ndim - 2];
  const std::int64_t cols = v.shape[v.ndim - 1];
  const std::int64_t row_stride = v.strides[v.ndim - 2];
  const std::int64_t col_stride = v.strides[v.ndim - 1];
  const T* data = v.as<const T>();
  if (rows <= 1 && cols <= 1) return {data, 1, false};
  if (cols <= 1) return row_stride == 1 ? Matrix<T>{data, rows, true} : Matrix<T>{data, row_stride, false};
  if (rows <= 1) return col_stride == 1 ? Matrix<T>{data, cols, false} : Matrix<T>{data, col_stride, true};
  if (col_stride == 1) return {data, row_stride, false};
  return {data, col_stride, true};
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// A grid of equal tiles over c. It depends on the sizes alone, so that results do not depend on threads.
struct Tiles {
  Tiles(std::int64_t m, std::int64_t n, std::int64_t k) : rows(m), cols(n) {
    const std::int64_t work = std::max(kTileWork, m * n * k / kTiles);
    while (rows * cols * k > work && std::max(rows, cols) >= 2 * kMinTile) {
      std::int64_t& longer = rows >= cols ? rows : cols;
      longer = ceil_div(longer / 2, kMinTile) * kMinTile;
    }
    across = std::max<std::int64_t>(1, ceil_div(n, std::max<std::int64_t>(1, cols)));
    count = across * std::max<std::int64_t>(1, ceil_div(m, std::max<std::int64_t>(1, rows)));
  }
  std::int64_t rows, cols, across, count;
};

template <class T>
void gemm_batched(Stream& stream, const View& c, const View& a, const View& b, T beta) {
  Matrix<T> ma = matrix_of<T>(a);
  Matrix<T> mb = matrix_of<T>(b);
  std::int64_t batch = c.ndim == 3 ? c.shape[0] : 1;
  std::int64_t m = c.shape[c.ndim - 2];
  const std::int64_t n = c.shape[c.ndim - 1];
  const std::int64_t k = a.shape[a.ndim - 1];
  std::int64_t a_step = a.ndim == 3 ? a.strides[0] : 0;
  std::int64_t b_step = b.ndim == 3 ? b.strides[0] : 0;
  std::int64_t c_step = c.ndim == 3 ? c.strides[0] : 0;
  // For one row any distance to the next will do; BLAS wants at least n.
  std::int64_t ldc = m > 1 ? c.strides[c.ndim - 2] : std::max<std::int64_t>(1, n);
  if (batch == 0 || m == 0 || n == 0) return;
  T* out = c.as<T>();

  // One matrix b for the whole batch: the rows of all items make one taller matrix.
  if (batch > 1 && b_step == 0) {
    const bool rows_follow = m == 1 || (!ma.transposed && a_step == m * ma.ld);
    const bool out_follows = m == 1 || c_step == m * ldc;
    if (rows_follow && out_follows && a_step >= k && c_step >= n && (m > 1 || !ma.transposed)) {
      if (m == 1) {
        ma.ld = a_step;
        ldc = c_step;
      }
      m *= batch;
      batch = 1;
    }
  }

  const Tiles tiles(m, n, k);
  const std::int64_t work = std::max<std::int64_t>(1, tiles.rows * tiles.cols * k);
  parallel_for(stream, batch * tiles.count, std::max<std::int64_t>(1, kTileWork / 8 / work),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t item = task / tiles.count;
                   const std::int64_t row = task % tiles.count / tiles.across * tiles.rows;
                   const std::int64_t col = task % tiles.count % tiles.across * tiles.cols;
                   Matrix<T> ta = ma;
                   Matrix<T> tb = mb;
                   ta.data += item * a_step + row * (ma.transposed ? 1 : ma.ld);
                   tb.data += item * b_step + col * (mb.transposed ? mb.ld : 1);
                   gemm_serial(std::min(tiles.rows, m - row), std::min(tiles.cols, n - col), k, ta, tb, beta,
                               out + item * c_step + row * ldc + col, ldc);
                 }
               });
}

}  // namespace

void CpuBackend::gemm(Stream& stream, const View& c, const View& a, const View& b, double beta) const {
  visit_floating(c.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    gemm_batched<T>(stream, c, a, b, static_cast<T>(beta));
  });
}

}  // namespace tandem::kernels::cpu
