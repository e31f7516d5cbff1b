// Matrix products by loops of our own.

#include <algorithm>

#include "gemm.h"
#include "isa.h"
#include "vector.h"

#define TANDEM_ISA_SOURCE "gemm_plain.inl"
#include "each_isa.h"

namespace tandem::kernels::cpu {
namespace {

/// y += x v with y's elements `y_step` apart, by stretches of v.
template <class T>
void add_matrix_vector(std::int64_t rows, std::int64_t cols, const T* x, std::int64_t ld, const T* v,
                       std::int64_t v_step, T* y, std::int64_t y_step) {
  constexpr std::int64_t stretch = 1024;
  T neighbours[stretch];
  for (std::int64_t j = 0; j < cols; j += stretch) {
    const std::int64_t count = std::min(stretch, cols - j);
    const T* part = v + j * v_step;
    if (v_step != 1) {
      for (std::int64_t i = 0; i < count; ++i) neighbours[i] = part[i * v_step];
      part = neighbours;
    }
    TANDEM_ISA_CALL(add_dot_products<T>, rows, count, x + j, ld, part, y, y_step);
  }
}

template <class T>
void gemm_any(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<T> a, Matrix<T> b, T beta, T* c,
              std::int64_t ldc) {
  const std::int64_t a_row = a.transposed ? 1 : a.ld, a_col = a.transposed ? a.ld : 1;
  const std::int64_t b_row = b.transposed ? 1 : b.ld, b_col = b.transposed ? b.ld : 1;
  if (k == 0) return scale_matrix(m, n, beta, c, ldc);
  if (n == 1 && a_col == 1) {
    scale_matrix(m, n, beta, c, ldc);
    return add_matrix_vector(m, k, a.data, a_row, b.data, b_row, c, ldc);
  }
  if (m == 1 && b_row == 1) {
    scale_matrix(m, n, beta, c, ldc);
    return add_matrix_vector(n, k, b.data, b_col, a.data, a_col, c, 1);
  }
  TANDEM_ISA_CALL(gemm_blocks<T>, m, n, k, {a.data, a_row, a_col}, {b.data, b_row, b_col}, beta, c, ldc);
}

}  // namespace

void gemm_plain(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c,
                std::int64_t ldc) {
  gemm_any(m, n, k, a, b, beta, c, ldc);
}

void gemm_plain(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<double> a, Matrix<double> b, double beta,
                double* c, std::int64_t ldc) {
  gemm_any(m, n, k, a, b, beta, c, ldc);
}

}  // namespace tandem::kernels::cpu
