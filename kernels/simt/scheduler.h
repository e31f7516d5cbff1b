#pragma once
// Streams: queues of operations, each in order, side by side with each other. An operation runs when it is the first of
// its queue and ready; options().schedule says on which thread.

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clocks.h"

namespace tandem::simt {

/// Where the order of one stream enters others'. Guarded by the scheduler.
struct Crossing {
  Time time;
};

struct Operation {
  /// Returns an error, which kills the device, or cudaSuccess.
  std::function<cudaError_t()> work{};
  /// Whether it may start; empty: at once. Called with the scheduler locked.
  std::function<bool()> ready{};
  bool wakes_others = false;  ///< streams that wait for something look again after it
  OperationName name{};
  std::shared_ptr<Crossing> gives{}, takes{};  ///< it and what is before comes before what takes later
  std::shared_ptr<const Time> after{};         ///< what the host knows to be done when it queues; put() fills it in
};

/// What cudaEventRecord leaves in a stream.
struct Point : Crossing {
  std::atomic<bool> done{false};
  std::atomic<std::int64_t> time_ns{0};
};

}  // namespace tandem::simt

struct CUstream_st {
  int device;
  unsigned flags;
  int priority;
  std::deque<tandem::simt::Operation> queue{};
  bool busy = false, ending = false;
  std::condition_variable changed{};
  unsigned number = 0;           // in the order of creation, from 1
  unsigned slot = 0;             // its place in Time
  std::uint64_t operations = 0;  // so far
  tandem::simt::Time time{};
};

struct CUevent_st {
  int device;
  unsigned flags;
  std::shared_ptr<tandem::simt::Point> last;
};

namespace tandem::simt {

CUstream_st* make_stream(int device, unsigned flags, int priority);
/// Whether it is a live one.
bool is_stream(const CUstream_st* stream);
/// Its operations still run.
void end_stream(CUstream_st* stream);
/// The stream that null names: of the current device.
CUstream_st* default_stream(int device);

void put(CUstream_st* stream, Operation operation);
/// Waits until the stream has run all, or until `stop`. False when nothing can go on (serial schedule only).
bool drain(CUstream_st* stream);
bool drain_device(int device);
bool wait_for(const Point& point);
/// Whether it is reached.
bool is_done(const Point& point);
bool is_idle(CUstream_st* stream);
/// Streams look again whether their first operation may start.
void wake();

/// The error that killed a device, or cudaSuccess.
cudaError_t device_error(int device);
void kill_device(int device, cudaError_t error);
void revive_devices();

}  // namespace tandem::simt
