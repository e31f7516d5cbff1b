// Matrix products for builds without a BLAS.

#include "gemm.h"

namespace tandem::kernels::cpu {

void gemm_serial(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float> a, Matrix<float> b, float beta, float* c,
                 std::int64_t ldc) {
  gemm_plain(m, n, k, a, b, beta, c, ldc);
}

void gemm_serial(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<double> a, Matrix<double> b, double beta,
                 double* c, std::int64_t ldc) {
  gemm_plain(m, n, k, a, b, beta, c, ldc);
}

}  // namespace tandem::kernels::cpu
