// cuBLAS on simulated GPUs: the products in use, by the CPU backend.
//
// Stricter than cuBLAS where that would read or write what it should not: pointers must lie inside allocations of the
// handle's device, and outputs may not overlap inputs.

#include <cublas_v2.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../../backend.h"
#include "standin.h"

using tandem::DType;
using tandem::kernels::View;
namespace simt = tandem::simt;

struct cublasContext {
  int device = 0;
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
};

namespace {

simt::Handles<cublasContext> handles;

cublasStatus_t refuse(cublasStatus_t status, const char* function, const std::string& why) {
  simt::report_refusal(function, why);
  return status;
}

/// A column-major matrix of a batch: `rows` elements next to each other, columns `ld` apart, items `stride` apart.
struct Matrix {
  const char* name;
  const void* data;
  std::int64_t rows, cols, ld, stride, batch, element;

  /// One item's columns.
  simt::Bytes item(std::int64_t i) const {
    return {static_cast<const char*>(data) + i * stride * element, static_cast<std::size_t>(rows * element),
            static_cast<std::size_t>(ld * element), static_cast<std::size_t>(rows == 0 ? 0 : cols)};
  }
  bool has_valid_ld() const { return ld >= std::max<std::int64_t>(1, rows); }
  std::size_t bytes() const {
    if (rows == 0 || cols == 0 || batch == 0) return 0;
    return static_cast<std::size_t>((stride * (batch - 1) + ld * (cols - 1) + rows) * element);
  }
  /// Whether some element belongs to two items: neither is one item after the other, nor are their columns.
  bool overlaps_itself() const {
    if (batch <= 1) return false;
    const bool apart = stride >= ld * (cols - 1) + rows;
    const bool side_by_side = stride >= rows && ld >= stride * (batch - 1) + rows;
    return !apart && !side_by_side;
  }
  /// Whether an element may belong to both. Columns side by side with one leading dimension do not count.
  bool overlaps(const Matrix& other) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data), end = begin + bytes();
    const auto from = reinterpret_cast<std::uintptr_t>(other.data), to = from + other.bytes();
    if (end <= from || to <= begin) return false;
    if (batch != 1 || other.batch != 1 || ld != other.ld || from % static_cast<std::uintptr_t>(element) != 0)
      return true;
    const std::int64_t shift = (static_cast<std::int64_t>(from) - static_cast<std::int64_t>(begin)) / element;
    const std::int64_t within = ((shift % ld) + ld) % ld;
    return within < rows || within + other.rows > ld;
  }
};

/// Why `m` cannot be an operand on `device`, or nothing.
std::string fault_of(const Matrix& m, int device) {
  const std::string name = m.name;
  if (!m.has_valid_ld()) {
    return "ld" + name + " = " + std::to_string(m.ld) + " is less than the " + std::to_string(m.rows) + " rows of " +
           name;
  }
  if (m.stride < 0) return "the stride of " + name + " is negative";
  return simt::pointer_fault(name.c_str(), m.data, m.bytes(), static_cast<std::size_t>(m.element), device);
}

/// The matrix as a row-major view of its transpose, or of itself.
struct Operand {
  Operand(const Matrix& m, bool transposed, DType dtype)
      : shape{m.batch, transposed ? m.rows : m.cols, transposed ? m.cols : m.rows},
        strides{m.stride, transposed ? 1 : m.ld, transposed ? m.ld : 1},
        dtype_(dtype),
        data_(const_cast<void*>(m.data)) {}
  View view() const { return {data_, shape, strides, 3, dtype_}; }
  std::int64_t shape[3], strides[3];
  DType dtype_;
  void* data_;
};

}  // namespace

extern "C" {

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the handle is not one";
    case CUBLAS_STATUS_ALLOC_FAILED: return "no memory for the handle";
    case CUBLAS_STATUS_INVALID_VALUE: return "an argument has an unsupported value";
    case CUBLAS_STATUS_MAPPING_ERROR: return "the handle belongs to another device";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the device failed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "not supported";
    default: return "internal error";
  }
}

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (handle == nullptr) return refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasCreate", "handle is null");
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = handles.make();
  (*handle)->device = device;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  return handles.destroy(handle) ? CUBLAS_STATUS_SUCCESS
                                 : refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasDestroy", "no such handle");
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (!handles.has(handle)) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasSetStream", "no such handle");
  if (const std::string fault = simt::stream_fault(stream, handle->device); !fault.empty()) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasSetStream", fault);
  }
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  if (!handles.has(handle)) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasGetStream", "no such handle");
  if (stream == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes) {
  const char* function = "cublasSetWorkspace";
  if (!handles.has(handle)) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, function, "no such handle");
  if (const std::string fault = simt::pointer_fault("workspace", workspace, bytes, 256, handle->device);
      !fault.empty()) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, function, fault);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
  const char* function = "cublasSetPointerMode";
  if (!handles.has(handle)) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, function, "no such handle");
  if (mode != CUBLAS_POINTER_MODE_HOST) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, function, "only the host's mode");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t* mode) {
  if (!handles.has(handle)) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasGetPointerMode", "no such handle");
  if (mode == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *mode = handle->pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  const char* function = "cublasSetMathMode";
  if (!handles.has(handle)) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, function, "no such handle");
  if (mode != CUBLAS_DEFAULT_MATH && mode != CUBLAS_PEDANTIC_MATH && mode != CUBLAS_TF32_TENSOR_OP_MATH) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, function, "math mode " + std::to_string(mode));
  }
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  if (!handles.has(handle)) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasGetMathMode", "no such handle");
  if (mode == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *mode = handle->math;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx_64(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                                             int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
                                             cudaDataType a_type, int64_t lda, long long a_stride, const void* b,
                                             cudaDataType b_type, int64_t ldb, long long b_stride, const void* beta,
                                             void* c, cudaDataType c_type, int64_t ldc, long long c_stride,
                                             int64_t batch, cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  const char* function = "cublasGemmStridedBatchedEx";
  if (!handles.has(handle)) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, function, "no such handle");
  const auto invalid = [&](const std::string& why) { return refuse(CUBLAS_STATUS_INVALID_VALUE, function, why); };
  const auto unsupported = [&](const std::string& why) { return refuse(CUBLAS_STATUS_NOT_SUPPORTED, function, why); };

  const bool single = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                      compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const bool twice = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
  if (!single && !twice) return unsupported("compute type " + std::to_string(compute));
  const cudaDataType type = single ? CUDA_R_32F : CUDA_R_64F;
  if (a_type != type || b_type != type || c_type != type) return unsupported("the types differ from the compute type");
  if (algorithm != CUBLAS_GEMM_DEFAULT) return unsupported("algorithm " + std::to_string(algorithm));
  for (const cublasOperation_t op : {op_a, op_b}) {
    if (op != CUBLAS_OP_N && op != CUBLAS_OP_T) return unsupported("operation " + std::to_string(op));
  }
  if (m < 0 || n < 0 || k < 0 || batch < 0) return invalid("a size is negative");
  if (alpha == nullptr || beta == nullptr) return invalid("alpha or beta is null");
  if (simt::is_device_memory(alpha) || simt::is_device_memory(beta)) {
    return invalid("alpha or beta is in device memory, but the pointer mode is the host's");
  }
  const auto value = [single](const void* p) {
    return single ? static_cast<double>(*static_cast<const float*>(p)) : *static_cast<const double*>(p);
  };
  if (value(alpha) != 1) return unsupported("alpha other than 1");

  const bool ta = op_a == CUBLAS_OP_T, tb = op_b == CUBLAS_OP_T;
  const std::int64_t element = single ? 4 : 8;
  const Matrix ma{"a", a, ta ? k : m, ta ? m : k, lda, a_stride, batch, element};
  const Matrix mb{"b", b, tb ? n : k, tb ? k : n, ldb, b_stride, batch, element};
  const Matrix mc{"c", c, m, n, ldc, c_stride, batch, element};
  for (const Matrix& x : {ma, mb, mc}) {
    if (const std::string fault = fault_of(x, handle->device); !fault.empty()) return invalid(fault);
  }
  if (const std::string fault = simt::current_device_fault(handle->device); !fault.empty()) return invalid(fault);
  if (const std::string fault = simt::stream_fault(handle->stream, handle->device); !fault.empty())
    return invalid(fault);
  if (m == 0 || n == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;
  if (mc.overlaps_itself()) return invalid("items of c overlap");
  if (mc.overlaps(ma)) return invalid("c overlaps a");
  if (mc.overlaps(mb)) return invalid("c overlaps b");

  // The same memory read by rows: c' = op(b)' op(a)'.
  const DType dtype = single ? DType::Float32 : DType::Float64;
  const Operand out(mc, false, dtype), left(mb, tb, dtype), right(ma, ta, dtype);
  std::vector<simt::Bytes> reads, writes;
  for (std::int64_t i = 0; i < batch; ++i) {
    reads.push_back(ma.item(i));
    reads.push_back(mb.item(i));
    if (value(beta) != 0) reads.push_back(mc.item(i));
    writes.push_back(mc.item(i));
  }
  const cudaError_t queued =
      simt::queue(handle->stream, function, reads, writes, [out, left, right, factor = value(beta)] {
        tandem::kernels::Stream stream;
        tandem::kernels::cpu_backend().gemm(stream, out.view(), left.view(), right.view(), factor);
      });
  return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
