// Matrix products by a CBLAS, if it suits the processor.

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "blas_threads.h"
#include "gemm.h"

namespace tandem::kernels::cpu {
namespace {

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();

int blas_int(std::int64_t v) { return static_cast<int>(v); }

void blas_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const float* a, int lda, const float* b,
               int ldb, float beta, float* c, int ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1.0F, a, lda, b, ldb, beta, c, ldc);
}
void blas_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const double* a, int lda, const double* b,
               int ldb, double beta, double* c, int ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1.0, a, lda, b, ldb, beta, c, ldc);
}

void blas_gemv(CBLAS_TRANSPOSE t, int rows, int cols, const float* a, int lda, const float* x, int incx, float* y,
               int incy) {
  cblas_sgemv(CblasRowMajor, t, rows, cols, 1.0F, a, lda, x, incx, 1.0F, y, incy);
}
void blas_gemv(CBLAS_TRANSPOSE t, int rows, int cols, const double* a, int lda, const double* x, int incx, double* y,
               int incy) {
  cblas_dgemv(CblasRowMajor, t, rows, cols, 1.0, a, lda, x, incx, 1.0, y, incy);
}

/// A leading dimension that BLAS accepts: at least the length of a row in memory, also where there is but one row.
template <class T>
std::int64_t legal_ld(const Matrix<T>& x, std::int64_t rows, std::int64_t cols) {
  const std::int64_t lines = x.transposed ? cols : rows;
  const std::int64_t length = x.transposed ? rows : cols;
  return lines > 1 ? x.ld : std::max<std::int64_t>(1, length);
}

/// y += op(x) v for a matrix with `rows` and `cols` as seen through its transposition.
template <class T>
void add_matrix_vector(std::int64_t rows, std::int64_t cols, Matrix<T> x, const T* v, std::int64_t v_step, T* y,
                       std::int64_t y_step) {
  const int ld = blas_int(legal_ld(x, rows, cols));
  if (x.transposed) std::swap(rows, cols);
  blas_gemv(x.transposed ? CblasTrans : CblasNoTrans, blas_int(rows), blas_int(cols), x.data, ld, v,
            blas_int(std::max<std::int64_t>(1, v_step)), y, blas_int(std::max<std::int64_t>(1, y_step)));
}

template <class T>
void gemm_any(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<T> a, Matrix<T> b, T beta, T* c,
              std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale_matrix(m, n, beta, c, ldc);

  // BLAS counts in 32 bits: halve what does not fit.
  a.ld = legal_ld(a, m, k);
  b.ld = legal_ld(b, k, n);
  ldc = m > 1 ? ldc : std::max<std::int64_t>(1, n);
  const std::int64_t largest = std::max({m, n, k, a.ld, b.ld, ldc});
  if (largest > kIntMax) {
    const std::int64_t a_row = a.transposed ? 1 : a.ld, a_col = a.transposed ? a.ld : 1;
    const std::int64_t b_row = b.transposed ? 1 : b.ld, b_col = b.transposed ? b.ld : 1;
    if (m > 1 && (m >= std::max(n, k) || std::max(a_row, ldc) > kIntMax)) {
      const std::int64_t half = m / 2;
      gemm_any(half, n, k, a, b, beta, c, ldc);
      a.data += half * a_row;
      return gemm_any(m - half, n, k, a, b, beta, c + half * ldc, ldc);
    }
    if (n > 1 && (n >= k || b_col > kIntMax)) {
      const std::int64_t half = n / 2;
      gemm_any(m, half, k, a, b, beta, c, ldc);
      b.data += half * b_col;
      return gemm_any(m, n - half, k, a, b, beta, c + half, ldc);
    }
    const std::int64_t half = k / 2;
    gemm_any(m, n, half, a, b, beta, c, ldc);
    a.data += half * a_col;
    b.data += half * b_row;
    return gemm_any(m, n, k - half, a, b, T(1), c, ldc);
  }

  if (m == 1 || n == 1) {
    // Reads the matrix once, where a gemm packs it first. gemv may let NaN survive beta == 0, so scale here.
    if (beta != T(1)) scale_matrix(m, n, beta, c, ldc);
    if (n == 1) {
      add_matrix_vector(m, k, a, b.data, b.transposed ? 1 : b.ld, c, ldc);
    } else {
      add_matrix_vector(n, k, Matrix<T>{b.data, b.ld, !b.transposed}, a.data, a.transposed ? a.ld : 1, c, 1);
    }
    return;
  }
  blas_gemm(a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans, blas_int(m),
            blas_int(n), blas_int(k), a.data, blas_int(a.ld), b.data, blas_int(b.ld), beta, c, blas_int(ldc));
}

/// Sets the BLAS up at the first call, and says whether to use it.
bool use_blas() {
  static const bool use = [] {
    single_threaded_blas();
    return blas_suits_processor();
  }();
  return use;
}

}  // namespace

void gemm_serial(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c,
                 std::int64_t ldc) {
  if (!use_blas()) return gemm_plain(m, n, k, a, b, beta, c, ldc);
  gemm_any(m, n, k, a, b, beta, c, ldc);
}

void gemm_serial(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<double> a, Matrix<double> b, double beta,
                 double* c, std::int64_t ldc) {
  if (!use_blas()) return gemm_plain(m, n, k, a, b, beta, c, ldc);
  gemm_any(m, n, k, a, b, beta, c, ldc);
}

}  // namespace tandem::kernels::cpu
