// CUDA's functions for errors, streams, events and launches.

#include "runtime.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "block.h"
#include "enqueue.h"
#include "failures.h"
#include "fault.h"
#include "leaks.h"
#include "options.h"

namespace tandem::simt {
namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

cudaError_t result(cudaError_t error) {
  if (error == cudaSuccess) error = device_error(device_of_thread);
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

/// As result() of a call that only queues: what goes wrong later, even at once in the eager schedule, is told later.
static cudaError_t queued(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int current_device() { return device_of_thread; }
void make_current(int device) { device_of_thread = device; }

CUstream_st* resolve(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return default_stream(device_of_thread);
  return is_stream(stream) ? stream : nullptr;
}

cudaError_t waited(bool finished, int device) {
  if (finished) return device_error(device);
  report("no stream can make progress: each waits for something that nobody will do");
  return cudaErrorLaunchTimeout;
}

cudaError_t put_on(cudaStream_t handle, Operation operation) {
  CUstream_st* stream = resolve(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = device_error(stream->device); error != cudaSuccess) return error;
  const bool legacy = stream == default_stream(stream->device);
  if (legacy) {
    if (const cudaError_t error = waited(drain_device(stream->device), stream->device)) return error;
  }
  put(stream, std::move(operation));
  return legacy ? waited(drain(stream), stream->device) : cudaSuccess;
}

cudaError_t fail_on(cudaStream_t stream, int code) {
  const auto error = static_cast<cudaError_t>(code);
  return is_fault_of_device(code) ? put_on(stream, {.work = [error] { return error; }}) : error;
}

cudaError_t launch(const LaunchShape& shape, cudaStream_t stream, std::function<void()> thread) {
  const dim3 &g = shape.grid, &b = shape.block;
  const std::size_t threads = std::size_t{b.x} * b.y * b.z;
  if (threads == 0 || threads > 1024 || b.z > 64 || g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu ||
      g.y > 65535 || g.z > 65535 || shape.shared > std::size_t{227} << 10) {
    return result(cudaErrorInvalidConfiguration);
  }
  if (const int code = take_failure(Call::Launch); code != 0) return queued(fail_on(stream, code));
  return queued(put_on(stream, {.work =
                                    [shape, thread = std::move(thread)] {
                                      install_fault_handler();
                                      const std::string fault = run_grid(shape, thread, options().order);
                                      if (fault.empty()) return cudaSuccess;
                                      report(fault);
                                      return cudaErrorIllegalAddress;
                                    },
                                .name = {OperationKind::Kernel, "", shape.kernel}}));
}

cudaError_t enqueue(cudaStream_t stream, const char* name, std::function<cudaError_t()> work) {
  return result(put_on(stream, {.work = std::move(work), .name = {OperationKind::Library, name}}));
}

cudaError_t enqueue_meeting(cudaStream_t stream, const char* name, std::shared_ptr<Crossing> order,
                            std::function<cudaError_t()> arrive, std::function<bool()> may_go) {
  const OperationName as{OperationKind::Library, name};
  if (const cudaError_t error =
          put_on(stream, {.work = std::move(arrive), .wakes_others = true, .name = as, .gives = order});
      error != cudaSuccess) {
    return result(error);
  }
  return result(put_on(stream, {.ready = std::move(may_go), .wakes_others = true, .name = as, .takes = order}));
}

}  // namespace tandem::simt

using namespace tandem::simt;

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = std::exchange(last_error, cudaSuccess);
  const cudaError_t sticky = device_error(current_device());
  return sticky != cudaSuccess ? sticky : error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

struct ErrorText {
  cudaError_t code;
  const char *name, *text;
};
static const ErrorText* error_text(cudaError_t code) {
  static constexpr ErrorText texts[] = {
      {cudaSuccess, "cudaSuccess", "no error"},
      {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
      {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
      {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
      {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
      {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
      {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
      {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
      {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
      {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
      {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
      {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
      {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
      {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
      {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
       "peer access is not supported between these two devices"},
      {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
      {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
  };
  const auto* found = std::find_if(std::begin(texts), std::end(texts), [&](const auto& t) { return t.code == code; });
  return found == std::end(texts) ? nullptr : found;
}
const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* t = error_text(error);
  return t ? t->name : "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* t = error_text(error);
  return t ? t->text : "unknown error";
}

static cudaError_t create_stream(cudaStream_t* stream, unsigned flags, int priority, const void* caller) {
  if (!stream || flags > cudaStreamNonBlocking) return result(cudaErrorInvalidValue);
  *stream = make_stream(current_device(), flags, std::clamp(priority, -5, 0));
  note_made(Resource::Stream, *stream, current_device(), 0, caller);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create_stream(stream, flags, priority, __builtin_return_address(0));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create_stream(stream, flags, 0, __builtin_return_address(0));
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create_stream(stream, 0, 0, __builtin_return_address(0)); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!stream || !is_stream(stream)) return result(cudaErrorInvalidResourceHandle);
  note_gone(stream);
  end_stream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  CUstream_st* stream = resolve(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  return result(waited(drain(stream), stream->device));
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  CUstream_st* stream = resolve(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  return result(is_idle(stream) ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  const CUstream_st* stream = resolve(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  *device = stream->device;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!event) return result(cudaErrorInvalidResourceHandle);
  if (!event->last) return cudaSuccess;  // never recorded: nothing to wait for
  return result(put_on(stream, {.ready = [point = event->last] { return point->done.load(); },
                                .name = {OperationKind::Other, "cudaStreamWaitEvent"},
                                .takes = event->last}));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (!function) return result(cudaErrorInvalidValue);
  return result(put_on(stream, {.work = [=] { return function(data), cudaSuccess; },
                                .name = {OperationKind::HostFunction, "cudaLaunchHostFunc"}}));
}

static cudaError_t create_event(cudaEvent_t* event, unsigned flags, const void* caller) {
  if (!event) return result(cudaErrorInvalidValue);
  *event = new CUevent_st{current_device(), flags, nullptr};
  note_made(Resource::Event, *event, current_device(), 0, caller);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return create_event(event, flags, __builtin_return_address(0));
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return create_event(event, 0, __builtin_return_address(0)); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event) return result(cudaErrorInvalidResourceHandle);
  note_gone(event);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  const CUstream_st* stream = resolve(handle);
  if (!event || !stream) return result(cudaErrorInvalidResourceHandle);
  if (stream->device != event->device) return result(cudaErrorInvalidResourceHandle);
  auto point = std::make_shared<Point>();
  event->last = point;
  return result(put_on(handle, {.work =
                                    [point] {
                                      point->time_ns = now();
                                      point->done = true;
                                      return cudaSuccess;
                                    },
                                .wakes_others = true,
                                .name = {OperationKind::Other, "cudaEventRecord"},
                                .gives = point}));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!event) return result(cudaErrorInvalidResourceHandle);
  if (!event->last) return cudaSuccess;
  return result(waited(wait_for(*event->last), event->device));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!event) return result(cudaErrorInvalidResourceHandle);
  return result(!event->last || is_done(*event->last) ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin || !end || !begin->last || !end->last || ((begin->flags | end->flags) & cudaEventDisableTiming) != 0) {
    return result(cudaErrorInvalidResourceHandle);
  }
  if (!begin->last->done || !end->last->done) return result(cudaErrorNotReady);
  *milliseconds = static_cast<float>(static_cast<double>(end->last->time_ns - begin->last->time_ns) / 1e6);
  return cudaSuccess;
}

}  // extern "C"
