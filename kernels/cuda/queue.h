#pragma once
// What the operations of one CUDA device share, and the handles of streams and events.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "../backend.h"

struct cublasContext;
struct cudnnContext;

namespace tandem::kernels::cuda {

/// Makes a physical device current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int physical);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int saved_ = -1;
};

/// An in-order stream of one physical device.
class StreamHandle {
 public:
  /// `high_priority`: its work goes first where a device has a choice.
  explicit StreamHandle(int physical, bool high_priority = false);
  ~StreamHandle();
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
  cudaStream_t get() const { return stream_; }
  /// Work queued later here starts after what `other` has queued so far. Any two devices.
  void wait_for(const StreamHandle& other) const;
  void synchronize() const;

 private:
  int physical_;
  cudaStream_t stream_ = nullptr;
};

/// A point in a stream.
class Event {
 public:
  explicit Event(int physical, bool timing = false);
  ~Event();
  Event(Event&& other) noexcept : physical_(other.physical_), event_(other.event_) { other.event_ = nullptr; }
  Event& operator=(Event&&) = delete;
  void record(cudaStream_t stream) const;
  void make_wait(cudaStream_t stream) const;
  void synchronize() const;
  /// Whether everything before it has run.
  bool done() const;
  /// Milliseconds from `begin` to this event; both timing, both done.
  float milliseconds_since(const Event& begin) const;

 private:
  int physical_;
  cudaEvent_t event_ = nullptr;
};

/// An index out of range, as kernels report it: the first thread to take `lock` writes `report`, which the host reads
/// when it has waited for the queue.
struct FaultReport {
  IndexFault fault;
  const char* op;
};
struct FaultSink {
  unsigned* lock;       ///< device memory
  FaultReport* report;  ///< pinned host memory
  const char* op;       ///< a literal of the host
};

/// One per device. Threads may use it at the same time: an operation locks it while it queues its kernels, so that
/// scratch memory and library handles serve one operation at a time.
class Queue {
 public:
  /// `device` counts Tandem's devices, `physical` CUDA's.
  Queue(int device, int physical);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  int device() const { return device_; }
  int physical() const { return physical_; }
  const StreamHandle& compute() const { return compute_; }
  const StreamHandle& copies() const { return copies_; }
  const StreamHandle& communication() const { return communication_; }

  /// Waits for all compute. Throws CudaError if something failed. An index fault met since the last call is in
  /// `*fault`.
  void synchronize(FaultReport* fault);

 private:
  friend class Scope;

  int device_;
  int physical_;
  StreamHandle compute_, copies_, communication_;
  std::mutex mutex_;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  unsigned* fault_lock_ = nullptr;
  FaultReport* fault_report_ = nullptr;
  cublasContext* cublas_ = nullptr;
  cudnnContext* cudnn_ = nullptr;
  void* cublas_workspace_ = nullptr;
};

/// One operation being queued. The first thing in every function of the backend: it locks the queue, makes its device
/// current, refuses dead devices, and opens an NVTX range named `op`, a literal.
class Scope {
 public:
  Scope(Stream& stream, const char* op);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  cudaStream_t stream() const { return queue_.compute_.get(); }
  /// Device memory for this operation only, aligned to 256 bytes, uninitialised. One piece per operation.
  void* scratch(std::size_t bytes);
  FaultSink faults() const { return {queue_.fault_lock_, queue_.fault_report_, op_}; }
  /// cuBLAS on the compute stream, with a fixed workspace; pointer mode host.
  cublasContext* cublas();
  /// cuDNN on the compute stream; null in builds without cuDNN.
  cudnnContext* cudnn();

 private:
  Queue& queue_;
  const char* op_;
  std::unique_lock<std::mutex> lock_;
  DeviceGuard guard_;
};

/// Whether float32 matrix products and convolutions may use TF32 (10 bits of mantissa). Off at first.
inline std::atomic<bool> allow_tf32{false};

}  // namespace tandem::kernels::cuda
