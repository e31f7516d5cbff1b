#pragma once
// What the files that define CUDA's functions share.

#include <cuda_runtime_api.h>

#include "scheduler.h"

namespace tandem::simt {

/// Remembers an error for cudaGetLastError, and returns it. Sticky errors of the current device go before.
cudaError_t result(cudaError_t error);
int current_device();
/// For the calling thread.
void make_current(int device);
/// Whether kernels of `device` may use the memory of `peer`: cudaDeviceEnablePeerAccess was called.
bool peer_access(int device, int peer);
/// Of a handle, null included; null if there is no such stream.
CUstream_st* resolve(cudaStream_t stream);
/// Queues work on a stream, null included, as the legacy default stream does: it waits for all that the device was
/// given before, and all that the device is given later waits for it. (We wait in the calling thread, which is
/// stricter.)
cudaError_t put_on(cudaStream_t stream, Operation operation);
/// What becomes of a call that fails on demand: an error at once, or the death of the device when its turn comes.
cudaError_t fail_on(cudaStream_t stream, int code);
/// Waits; an error of the device, or of a schedule that cannot go on.
cudaError_t waited(bool finished, int device);

}  // namespace tandem::simt
