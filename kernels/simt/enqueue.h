#pragma once
// What the stand-ins for libraries use of the simulator.

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "memory.h"
#include "scheduler.h"

namespace tandem::simt {

/// Adds to the report, which control.h reads.
void report(const std::string& text);

/// Work of a library on a stream; an error that it returns kills the device. Returns the error of the stream or the
/// device, if there is one already.
cudaError_t enqueue(cudaStream_t stream, const char* name, std::function<cudaError_t()> work);
/// The same for work that meets others: runs `arrive`, then holds the stream until `may_go`. All that meet share
/// `order`: what any of them did before comes before what any does after.
cudaError_t enqueue_meeting(cudaStream_t stream, const char* name, std::shared_ptr<Crossing> order,
                            std::function<cudaError_t()> arrive, std::function<bool()> may_go);

}  // namespace tandem::simt
