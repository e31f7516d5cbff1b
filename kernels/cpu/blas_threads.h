#pragma once
// What the standard interface of a BLAS cannot say. Defined in blas_threads_openblas.cpp, or in blas_threads_none.cpp
// for any other BLAS.

namespace tandem::kernels::cpu {

/// Keeps every call in the calling thread: the work is split above it.
void single_threaded_blas();

/// Whether the BLAS uses the widest vectors of this processor. An OpenBLAS older than the processor often does not:
/// it then falls back to kernels that are several times slower than gemm_plain.
bool blas_suits_processor();

}  // namespace tandem::kernels::cpu
