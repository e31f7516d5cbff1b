#pragma once
// Matrix products on raw pointers, for gemm.cpp and for the kernels built on them.

#include <cstdint>

namespace tandem::kernels::cpu {

/// An operand of a product: element (i, j) is data[i * ld + j], or data[j * ld + i] when `transposed`.
template <class T>
struct Matrix {
  const T* data;
  std::int64_t ld;
  bool transposed = false;
};

/// c = beta c + a b in the calling thread; c (m, n) with rows `ldc` apart, a (m, k), b (k, n). With beta 0 the old
/// content of c does not matter. By a BLAS that suits the processor where there is one (gemm_cblas.cpp), or by
/// gemm_plain (gemm_no_blas.cpp).
void gemm_serial(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c,
                 std::int64_t ldc);
void gemm_serial(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<double> a, Matrix<double> b, double beta,
                 double* c, std::int64_t ldc);

/// The same by loops of our own.
void gemm_plain(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c,
                std::int64_t ldc);
void gemm_plain(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<double> a, Matrix<double> b, double beta,
                double* c, std::int64_t ldc);

/// c = beta c, for products over nothing.
template <class T>
void scale_matrix(std::int64_t m, std::int64_t n, T beta, T* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
  }
}

}  // namespace tandem::kernels::cpu
