#include "queue.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "../error.h"
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

Staging::~Staging() { static_cast<void>(cudaFreeHost(memory_)); }

void Staging::open() {
  if (memory_) return;
  const DeviceGuard guard(physical_);
  for (std::size_t i = events_.size(); i < kPieces; ++i) events_.emplace_back(physical_);
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, kPieces * kPieceBytes, cudaHostAllocPortable), "cudaHostAlloc");
  memory_ = static_cast<std::byte*>(memory);
}

void Staging::copy_in(const StreamHandle& stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  open();
  for (std::size_t at = 0; at < bytes; at += kPieceBytes, ++next_) {
    const std::size_t n = std::min(kPieceBytes, bytes - at);
    event(next_).synchronize();
    std::memcpy(piece(next_), from + at, n);
    check(cudaMemcpyAsync(to + at, piece(next_), n, cudaMemcpyHostToDevice, stream.get()), "copy to the device");
    event(next_).record(stream.get());
  }
}

void Staging::copy_out(const StreamHandle& stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  open();
  const std::size_t count = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto size = [&](std::size_t i) { return std::min(kPieceBytes, bytes - i * kPieceBytes); };
  const std::size_t first = next_;
  next_ += count;
  for (std::size_t i = 0; i < count + kPieces - 1; ++i) {
    if (i < count) {
      event(first + i).synchronize();
      check(cudaMemcpyAsync(piece(first + i), from + i * kPieceBytes, size(i), cudaMemcpyDeviceToHost, stream.get()),
            "copy from the device");
      event(first + i).record(stream.get());
    }
    if (i < kPieces - 1) continue;
    const std::size_t done = i - (kPieces - 1);
    event(first + done).synchronize();
    std::memcpy(to + done * kPieceBytes, piece(first + done), size(done));
  }
}

Queue::Queue(int device, int physical, void (*release_cache)(int device))
    : device_(device),
      physical_(physical),
      compute_(physical),
      copies_(physical),
      communication_(physical, true),
      staging_(physical) {
  const DeviceGuard guard(physical);
  void* report = nullptr;
  fault_lock_ = static_cast<unsigned*>(reserve(sizeof(unsigned), "a queue"));
  check(cudaMemsetAsync(fault_lock_, 0, sizeof(unsigned), compute_.get()), "cudaMemsetAsync");
  check(cudaHostAlloc(&report, sizeof(FaultReport), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
  fault_report_ = new (report) FaultReport{};
  release_cache_ = release_cache;
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

void* Queue::reserve(std::size_t bytes, const char* what) {
  void* memory = nullptr;
  cudaError_t code = cudaMalloc(&memory, bytes);
  if (code == cudaErrorMemoryAllocation && release_cache_) {
    static_cast<void>(cudaGetLastError());
    release_cache_(device_);
    code = cudaMalloc(&memory, bytes);
  }
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw MemoryError("cuda:" + std::to_string(device_) + ": out of memory: requested " + std::to_string(bytes) +
                          " bytes for " + what + "; the cache has been released",
                      bytes, 0);
  }
  check(code, "cudaMalloc");
  return memory;
}

void Queue::check_alive() const { cuda::check_alive(physical_); }

void Queue::synchronize() {
  check_alive();
  for (const StreamHandle* stream : {&compute_, &copies_, &communication_}) stream->synchronize();
}

FaultReport Queue::take_fault() {
  const std::scoped_lock lock(mutex_);
  const volatile bool& set = fault_report_->fault.set;  // written by a kernel, last of all
  if (!set) return {};
  const DeviceGuard guard(physical_);
  const FaultReport report = *fault_report_;
  *fault_report_ = {};
  check(cudaMemsetAsync(fault_lock_, 0, sizeof(unsigned), compute_.get()), "cudaMemsetAsync");
  return report;
}

std::shared_ptr<const Anchor> Queue::anchor() {
  const std::scoped_lock lock(mutex_);
  if (!anchor_) {
    Event event(physical_, true);
    event.record(copies_.get());
    event.synchronize();
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const double host_ns = static_cast<double>(std::chrono::nanoseconds(now).count());
    anchor_ = std::make_shared<Anchor>(Anchor{std::move(event), host_ns});
  }
  return anchor_;
}

void Queue::move_anchor(std::shared_ptr<const Anchor> anchor) {
  const std::scoped_lock lock(mutex_);
  anchor_ = std::move(anchor);
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
    queue_.scratch_ = queue_.reserve(bytes, "an operation's intermediate results");
    queue_.scratch_bytes_ = bytes;
  }
  return queue_.scratch_;
}

cublasContext* Scope::cublas() {
  if (!queue_.cublas_) {
    queue_.cublas_workspace_ = queue_.reserve(kCublasWorkspace, "cuBLAS");
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
