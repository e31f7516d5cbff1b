#pragma once
// Launching a kernel: the one way, on GPUs and on simulated ones.
//
// TANDEM_SIMT is defined where the CUDA sources are built for the simulator of kernels/simt.

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>
#include <utility>

#include "check.h"

#ifdef TANDEM_SIMT
#include "../simt/launch.h"
#endif

/// In a kernel: `name` is the launch's dynamic shared memory, as an array of `type`, aligned to 16 bytes.
#ifdef TANDEM_SIMT
#define TANDEM_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(::tandem::simt::dynamic_shared())
#else
#define TANDEM_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char tandem_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(tandem_dynamic_shared)
#endif

namespace tandem::kernels::cuda {

/// Queues `kernel<<<grid, block, shared, stream>>>(args...)`, arguments converted to the kernel's parameter types.
/// Throws CudaError when the launch is refused. Nothing is launched for an empty grid.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream, const A&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  std::tuple<P...> parameters(static_cast<P>(args)...);
#ifdef TANDEM_SIMT
  const cudaError_t code = simt::launch({reinterpret_cast<const void*>(kernel), grid, block, shared}, stream,
                                        [kernel, parameters] { std::apply(kernel, parameters); });
#else
  const cudaError_t code = std::apply(
      [&](P&... p) {
        void* pointers[] = {static_cast<void*>(&p)..., nullptr};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared, stream);
      },
      parameters);
#endif
  check(code, "kernel launch");
}

}  // namespace tandem::kernels::cuda
