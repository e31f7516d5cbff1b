#pragma once
// Handles of the libraries that a CUDA device uses, and their failures. The device of `stream` is current in each call.

#include <cuda_runtime_api.h>

#include <cstddef>

struct cublasContext;
struct cudnnContext;

namespace tandem::kernels::cuda {

/// On `stream`, with scalars read from the host. Throws CudaError.
cublasContext* make_cublas(cudaStream_t stream);
/// Device memory for cuBLAS, aligned to 256 bytes, instead of what it would allocate per stream. Throws CudaError.
void set_cublas_workspace(cublasContext* handle, void* workspace, std::size_t bytes);
/// Null is fine.
void destroy_cublas(cublasContext* handle) noexcept;

/// On `stream`; null in builds without cuDNN. Throws CudaError.
cudnnContext* make_cudnn(cudaStream_t stream);
/// Null is fine.
void destroy_cudnn(cudnnContext* handle) noexcept;

/// Throws the CudaError for a library's function that failed: with the error that killed the device, if one did, else
/// with the library's number and text.
[[noreturn]] void throw_library_error(const char* function, const char* text, int code);

}  // namespace tandem::kernels::cuda
