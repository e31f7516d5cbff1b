#pragma once
// Return codes of CUDA's libraries become exceptions.

#include <cuda_runtime_api.h>

namespace tandem::kernels::cuda {

/// Throws CudaError with `what`, the device, and CUDA's name and text of the code, unless it is cudaSuccess. Remembers
/// the first sticky error of each physical device.
void check(cudaError_t code, const char* what);

/// Throws the CudaError that made the physical device unusable, if one did.
void check_alive(int physical_device);

/// Whether after this error the whole context is lost.
bool is_sticky(cudaError_t code);

}  // namespace tandem::kernels::cuda
