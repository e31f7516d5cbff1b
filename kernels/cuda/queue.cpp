#include "queue.h"

#include <nvtx3/nvToolsExt.h>

#include <cstring>
#include <new>
#include <utility>

#include "check.h"
#include "libraries.h"

namespace tandem::kernels::cuda {
namespace {

constexpr std::size_t kCublasWorkspace = std::size_t{32} << 20;

}  // namespace

DeviceGuard::DeviceGuard(int physical) {
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == physical) return;
  check(cudaSetDevice(physical), "cudaSetDevice");
  saved_ = current;
}
DeviceGuard::~DeviceGuard() {
  if (saved_ >= 0) static_cast<void>(cudaSetDevice(saved_));
}

StreamHandle::StreamHandle(int physical, bool high_priority) : physical_(physical) {
  const DeviceGuard guard(physical);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, high_priority ? greatest : least),
        "cudaStreamCreateWithPriority");
}
StreamHandle::~StreamHandle() { static_cast<void>(cudaStreamDestroy(stream_)); }

void StreamHandle::wait_for(const StreamHandle& other) const {
  const Event event(other.physical_);
  event.record(other.stream_);
  event.make_wait(stream_);
}
void StreamHandle::synchronize() const {
  const DeviceGuard guard(physical_);
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

Event::Event(int physical, bool timing) : physical_(physical) {
  const DeviceGuard guard(physical);
  check(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
}
Event::~Event() {
  if (event_) static_cast<void>(cudaEventDestroy(event_));
}
void Event::record(cudaStream_t stream) const {
  const DeviceGuard guard(physical_);
  check(cudaEventRecord(event_, stream), "cudaEventRecord");
}
void Event::make_wait(cudaStream_t stream) const {
  check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
}
void Event::synchronize() const {
  const DeviceGuard guard(physical_);
  check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}
bool Event::done() const {
  const DeviceGuard guard(physical_);
  const cudaError_t code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) return false;
  check(code, "cudaEventQuery");
  return true;
}
float Event::milliseconds_since(const Event& begin) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "cudaEventElapsedTime");
  return milliseconds;
}

Queue::Queue(int device, int physical)
    : device_(device), physical_(physical), compute_(physical), copies_(physical), communication_(physical, true) {
  const DeviceGuard guard(physical);
  void* lock = nullptr;
  void* report = nullptr;
  check(cudaMalloc(&lock, sizeof(unsigned)), "cudaMalloc");
  fault_lock_ = static_cast<unsigned*>(lock);
  check(cudaMemsetAsync(fault_lock_, 0, sizeof(unsigned), compute_.get()), "cudaMemsetAsync");
  check(cudaHostAlloc(&report, sizeof(FaultReport), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
  fault_report_ = new (report) FaultReport{};
}

Queue::~Queue() {
  int saved = 0;
  static_cast<void>(cudaGetDevice(&saved));
  static_cast<void>(cudaSetDevice(physical_));
  static_cast<void>(cudaStreamSynchronize(compute_.get()));
  destroy_cublas(cublas_);
  destroy_cudnn(cudnn_);
  for (void* memory : {scratch_, cublas_workspace_, static_cast<void*>(fault_lock_)}) {
    static_cast<void>(cudaFree(memory));
  }
  static_cast<void>(cudaFreeHost(fault_report_));
  static_cast<void>(cudaSetDevice(saved));
}

void Queue::synchronize(FaultReport* fault) {
  const std::scoped_lock lock(mutex_);
  const DeviceGuard guard(physical_);
  check_alive(physical_);
  check(cudaStreamSynchronize(compute_.get()), "waiting for the device");
  if (fault_report_->fault.set) {
    if (fault) *fault = *fault_report_;
    *fault_report_ = {};
    check(cudaMemsetAsync(fault_lock_, 0, sizeof(unsigned), compute_.get()), "cudaMemsetAsync");
  } else if (fault) {
    *fault = {};
  }
}

Scope::Scope(Stream& stream, const char* op)
    : queue_(*stream.queue), op_(op), lock_(queue_.mutex_), guard_(queue_.physical_) {
  check_alive(queue_.physical_);
  nvtxRangePushA(op);
}
Scope::~Scope() { nvtxRangePop(); }

void* Scope::scratch(std::size_t bytes) {
  if (bytes > queue_.scratch_bytes_) {
    // Kernels queued earlier may still use the old piece.
    queue_.compute_.synchronize();
    static_cast<void>(cudaFree(std::exchange(queue_.scratch_, nullptr)));
    queue_.scratch_bytes_ = 0;
    check(cudaMalloc(&queue_.scratch_, bytes), "scratch memory");
    queue_.scratch_bytes_ = bytes;
  }
  return queue_.scratch_;
}

cublasContext* Scope::cublas() {
  if (!queue_.cublas_) {
    check(cudaMalloc(&queue_.cublas_workspace_, kCublasWorkspace), "workspace of cuBLAS");
    queue_.cublas_ = make_cublas(stream());
    set_cublas_workspace(queue_.cublas_, queue_.cublas_workspace_, kCublasWorkspace);
  }
  return queue_.cublas_;
}

cudnnContext* Scope::cudnn() {
  if (!queue_.cudnn_) queue_.cudnn_ = make_cudnn(stream());
  return queue_.cudnn_;
}

}  // namespace tandem::kernels::cuda
