#pragma once
// What belongs to a thread while it computes. Captured once by whoever hands work to another thread, and installed
// there, so that a worker behaves as its caller would.

#include <cstdint>
#include <exception>
#include <vector>

#include "device.h"
#include "time_mark.h"

namespace tandem {

/// Sees timed spans of work, from any thread. `name` is a literal.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void span(const char* name, Device device, const TimeMark& begin, const TimeMark& end,
                    std::int64_t bytes) = 0;
};

/// The innermost call that an exception has come out of.
struct FailedCall {
  std::exception_ptr error;
  const void* callee = nullptr;
};
struct SampleRange;
class Tensor;

/// Where replicas that run at the same time put tensors together.
class ReplicaExchange {
 public:
  virtual ~ReplicaExchange() = default;
  /// result[j] is the sum of every replica's tensors[j], added in the order of the replicas, on the calling replica's
  /// device; differentiable, any number of times. Waits until all replicas have called it equally often; an Error when
  /// one has ended instead. `op` opens the messages.
  virtual std::vector<Tensor> all_reduce(const char* op, const std::vector<Tensor>& tensors) = 0;
};

/// For replicas that cannot wait for each other: a ValueError that says why.
class NoExchange final : public ReplicaExchange {
 public:
  /// `why` is a literal.
  explicit NoExchange(const char* why) : why_(why) {}
  std::vector<Tensor> all_reduce(const char* op, const std::vector<Tensor>& tensors) override;

 private:
  const char* why_;
};

struct Context {
  bool grad_enabled = true;
  bool anomaly = false;
  int threads = 0;  ///< threads of one operation; 0: all cores
  int replica = 0;  ///< index of the replica that runs, of `replicas`
  int replicas = 1;
  Device device{};                 ///< of the replica
  FailedCall* failed = nullptr;    ///< of the replica, where calls of modules leave a note; null outside of replicas
  Device default_device{};         ///< of new tensors
  Observer* observer = nullptr;    ///< gets the time that each device spends in backward()
  SampleRange* samples = nullptr;  ///< the part of a batch for which random numbers are drawn, see random.h
  ReplicaExchange* exchange = nullptr;  ///< set where batch statistics are those of all replicas
};

/// The calling thread's context.
Context& context();

/// Installs a context for a scope.
class ContextGuard {
 public:
  explicit ContextGuard(const Context& c) : saved_(context()) { context() = c; }
  ~ContextGuard() { context() = saved_; }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  Context saved_;
};

template <bool kEnabled>
class GradModeGuard {
 public:
  GradModeGuard() : saved_(context().grad_enabled) { context().grad_enabled = kEnabled; }
  ~GradModeGuard() { context().grad_enabled = saved_; }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool saved_;
};
/// Nothing is recorded on the tape while it lives.
using NoGradGuard = GradModeGuard<false>;
/// Recording goes on inside an outer NoGradGuard.
using EnableGradGuard = GradModeGuard<true>;

/// set_default_device() for a scope.
class DefaultDeviceGuard {
 public:
  explicit DefaultDeviceGuard(Device device) : saved_(get_default_device()) { set_default_device(device); }
  ~DefaultDeviceGuard() { context().default_device = saved_; }
  DefaultDeviceGuard(const DefaultDeviceGuard&) = delete;
  DefaultDeviceGuard& operator=(const DefaultDeviceGuard&) = delete;

 private:
  Device saved_;
};

/// Backward checks every gradient for NaN and names the operation that made the first one.
class AnomalyGuard {
 public:
  AnomalyGuard() : saved_(context().anomaly) { context().anomaly = true; }
  ~AnomalyGuard() { context().anomaly = saved_; }
  AnomalyGuard(const AnomalyGuard&) = delete;
  AnomalyGuard& operator=(const AnomalyGuard&) = delete;

 private:
  bool saved_;
};

}  // namespace tandem
