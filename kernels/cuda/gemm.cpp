// Matrix products by cuBLAS, whose matrices are column-major: a row-major c = a b is the column-major c' = b' a', the
// same memory read the other way. So b goes first, and nothing is moved.
//
// Sums are in cuBLAS's order, which depends on the sizes and the GPU, not on the run: one stream, one workspace, no
// atomics.

#include <cublas_v2.h>

#include <algorithm>

#include "cuda_backend.h"
#include "libraries.h"
#include "queue.h"

namespace tandem::kernels::cuda {
namespace {

void check_cublas(cublasStatus_t status, const char* function) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_library_error(function, cublasGetStatusString(status), static_cast<int>(status));
}

/// An operand: lines of `length` elements next to each other, `ld` >= length apart; rows, or columns if `transposed`.
struct Matrix {
  std::int64_t ld;
  bool transposed;
};

/// The last two dimensions of `v`. A dimension of size 0 or 1 has no stride worth reading.
Matrix matrix_of(const View& v) {
  const std::int64_t rows = v.shape[v.ndim - 2], cols = v.shape[v.ndim - 1];
  const std::int64_t row_stride = v.strides[v.ndim - 2], col_stride = v.strides[v.ndim - 1];
  const Matrix by_rows{std::max<std::int64_t>({1, cols, rows > 1 ? row_stride : 1}), false};
  const Matrix by_cols{std::max<std::int64_t>({1, rows, cols > 1 ? col_stride : 1}), true};
  if (cols <= 1) return rows > 1 && row_stride == 1 ? by_cols : by_rows;
  return col_stride == 1 ? by_rows : by_cols;
}

struct Product {
  std::int64_t batch, m, n, k;
  Matrix a, b;
  std::int64_t ldc;
  std::int64_t a_step, b_step, c_step;
};

Product product_of(const View& c, const View& a, const View& b) {
  Product p{};
  p.batch = c.ndim == 3 ? c.shape[0] : 1;
  p.m = c.shape[c.ndim - 2];
  p.n = c.shape[c.ndim - 1];
  p.k = a.shape[a.ndim - 1];
  p.a = matrix_of(a);
  p.b = matrix_of(b);
  p.ldc = p.m > 1 ? c.strides[c.ndim - 2] : std::max<std::int64_t>(1, p.n);
  if (p.batch > 1) {
    p.a_step = a.strides[0];
    p.b_step = b.strides[0];
    p.c_step = c.strides[0];
  }
  return p;
}

/// One matrix b for the whole batch: the rows of all items make one taller matrix, if they follow each other.
void fold_batch(Product& p) {
  if (p.batch == 1 || p.b_step != 0) return;
  if (p.m == 1 && p.a_step >= p.k && p.c_step >= p.n && !p.a.transposed) {
    p.a.ld = p.a_step;
    p.ldc = p.c_step;
  } else if (p.a.transposed || p.a_step != p.m * p.a.ld || p.c_step != p.m * p.ldc) {
    return;
  }
  p.m *= p.batch;
  p.batch = 1;
  p.a_step = p.c_step = 0;
}

template <class T>
void call(cublasHandle_t handle, const Product& p, T* c, const T* a, const T* b, T beta) {
  constexpr bool single = sizeof(T) == 4;
  constexpr cudaDataType_t type = single ? CUDA_R_32F : CUDA_R_64F;
  const cublasComputeType_t compute = !single      ? CUBLAS_COMPUTE_64F
                                      : allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                   : CUBLAS_COMPUTE_32F;
  const T alpha = 1;
  const auto op = [](const Matrix& x) { return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  check_cublas(cublasGemmStridedBatchedEx_64(handle, op(p.b), op(p.a), p.n, p.m, p.k, &alpha, b, type, p.b.ld, p.b_step,
                                             a, type, p.a.ld, p.a_step, &beta, c, type, p.ldc, p.c_step, p.batch,
                                             compute, CUBLAS_GEMM_DEFAULT),
               "cublasGemmStridedBatchedEx");
}

}  // namespace

cublasContext* make_cublas(cudaStream_t stream) {
  cublasHandle_t handle = nullptr;
  check_cublas(cublasCreate(&handle), "cublasCreate");
  try {
    check_cublas(cublasSetStream(handle, stream), "cublasSetStream");
    check_cublas(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST), "cublasSetPointerMode");
  } catch (...) {
    destroy_cublas(handle);
    throw;
  }
  return handle;
}

void set_cublas_workspace(cublasContext* handle, void* workspace, std::size_t bytes) {
  check_cublas(cublasSetWorkspace(handle, workspace, bytes), "cublasSetWorkspace");
}

void destroy_cublas(cublasContext* handle) noexcept {
  if (handle != nullptr) cublasDestroy(handle);
}

void CudaBackend::gemm(Stream& stream, const View& c, const View& a, const View& b, double beta) const {
  Product p = product_of(c, a, b);
  if (p.batch == 0 || p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    if (beta == 0) {
      fill(stream, c, 0);
    } else if (beta != 1) {
      binary(stream, BinaryOp::Mul, c, c, Scalar(beta));
    }
    return;
  }
  fold_batch(p);
  Scope scope(stream, "gemm");
  visit_floating(c.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    call<T>(scope.cublas(), p, c.as<T>(), a.as<const T>(), b.as<const T>(), static_cast<T>(beta));
  });
}

}  // namespace tandem::kernels::cuda
