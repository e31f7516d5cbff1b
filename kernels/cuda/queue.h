#pragma once
// What the operations of one CUDA device share, and the handles of streams and events.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "../cuda.h"

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

/// Where kernels report an index out of range: the first thread to take `lock` writes `report`, `set` last.
struct FaultSink {
  unsigned* lock;       ///< device memory
  FaultReport* report;  ///< pinned host memory
  const char* op;       ///< a literal of the host
};

/// A moment that both the device's events and the host's clock know.
struct Anchor {
  Event event;
  double host_ns;
};

/// Pinned memory through which copies from and to the host go, in pieces, so that the host fills or empties one piece
/// while others travel.
class Staging {
 public:
  explicit Staging(int physical) : physical_(physical) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Queues the copy; `from` has been read on return.
  void copy_in(const StreamHandle& stream, std::byte* to, const std::byte* from, std::size_t bytes);
  /// Copies all that the stream has written, and waits for it.
  void copy_out(const StreamHandle& stream, std::byte* to, const std::byte* from, std::size_t bytes);

 private:
  static constexpr std::size_t kPieces = 8;
  static constexpr std::size_t kPieceBytes = std::size_t{512} << 10;

  std::byte* piece(std::size_t i) const { return memory_ + i % kPieces * kPieceBytes; }
  const Event& event(std::size_t i) const { return events_[i % kPieces]; }
  void open();

  int physical_;
  std::mutex mutex_;
  std::byte* memory_ = nullptr;
  std::vector<Event> events_;  ///< when each piece is free again
  std::size_t next_ = 0;
};

/// One per device. Threads may use it at the same time: an operation locks it while it queues its kernels, so that
/// scratch memory and library handles serve one operation at a time.
class Queue {
 public:
  /// `device` counts Tandem's devices, `physical` CUDA's. `release_cache` may be null; see open_queue().
  Queue(int device, int physical, void (*release_cache)(int device) = nullptr);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  int device() const { return device_; }
  int physical() const { return physical_; }
  const StreamHandle& compute() const { return compute_; }
  const StreamHandle& copies() const { return copies_; }
  const StreamHandle& communication() const { return communication_; }

  Staging& staging() { return staging_; }

  /// Throws CudaError if an earlier error has killed the device.
  void check_alive() const;
  /// Waits for all compute. Throws CudaError if something failed.
  void synchronize();
  FaultReport take_fault();

  std::shared_ptr<const Anchor> anchor();
  /// From now on, anchor() is this one.
  void move_anchor(std::shared_ptr<const Anchor> anchor);

 private:
  friend class Scope;

  /// Memory for the queue itself.
  void* reserve(std::size_t bytes, const char* what);

  int device_;
  int physical_;
  void (*release_cache_)(int device) = nullptr;  // not while the queue is being made
  StreamHandle compute_, copies_, communication_;
  Staging staging_;
  std::mutex mutex_;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  unsigned* fault_lock_ = nullptr;
  FaultReport* fault_report_ = nullptr;
  cublasContext* cublas_ = nullptr;
  cudnnContext* cudnn_ = nullptr;
  void* cublas_workspace_ = nullptr;
  std::shared_ptr<const Anchor> anchor_;
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

}  // namespace tandem::kernels::cuda
