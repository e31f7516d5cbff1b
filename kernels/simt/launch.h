#pragma once
// Launching a kernel on a simulated GPU. The call returns at once; the stream runs the kernel when its turn comes:
// block after block, in each block thread after thread. A thread that waits for others (at a barrier, in a warp
// function) is left on its fiber, so a kernel without waiting is a plain loop. See block.h.

#include <cstddef>
#include <functional>

#include "device.h"

namespace tandem::simt {

struct LaunchShape {
  const void* kernel;  ///< its address, for messages
  dim3 grid, block;
  std::size_t shared;  ///< bytes of dynamic shared memory
};

/// `thread` runs once per thread of the grid. Returns CUDA's error for a shape that no GPU takes.
cudaError_t launch(const LaunchShape& shape, cudaStream_t stream, std::function<void()> thread);

}  // namespace tandem::simt
