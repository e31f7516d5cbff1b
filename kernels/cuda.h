#pragma once
// CUDA devices as the engine sees them: how many there are, their memory, and copies to and from it. Builds without
// CUDA have none (no_cuda.cpp).
//
// Order: all that an operation does with a device's memory happens in the order of its compute stream. Copies run on
// other streams, which wait for the compute streams of both ends, and which these wait for; so memory may be handed out
// again as soon as its last operation is queued. The exception is what Collectives has started and not finished.
//
// Every function throws CudaError when the device or the driver fails, unless it says noexcept.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend.h"

namespace tandem::kernels::cuda {

/// GPUs that can be used, at most 64: 0 without a driver or where none is visible.
int gpu_count();
/// Why gpu_count() is 0.
std::string why_no_gpus();
/// What CUDA calls a GPU: "NVIDIA H200".
std::string gpu_name(int gpu);

/// The streams and handles of one device on a GPU; several devices may share one. `release_cache` is called when the
/// GPU has no memory left for the queue itself, which then tries once more.
Queue* open_queue(int device, int gpu, void (*release_cache)(int device));

/// Null when the GPU has no room for it.
std::byte* allocate(Queue& queue, std::size_t bytes);
void free(Queue& queue, std::byte* data) noexcept;
/// Queues the filling with one byte.
void fill_bytes(Queue& queue, std::byte* data, unsigned char value, std::size_t bytes);

/// Queues a copy. `from` has been read when the call returns.
void copy_in(Queue& queue, std::byte* to, const std::byte* from, std::size_t bytes);
/// Copies, and waits for it.
void copy_out(Queue& queue, std::byte* to, const std::byte* from, std::size_t bytes);
/// Whether two devices use each other's memory, so that copies go straight across. They do on one GPU.
bool peers(const Queue& a, const Queue& b);
/// Queues a copy from one device to another.
void copy_between(Queue& to_queue, std::byte* to, Queue& from_queue, const std::byte* from, std::size_t bytes);

/// An index out of range that a kernel of `op` met.
struct FaultReport {
  IndexFault fault;
  const char* op = nullptr;
};
/// Waits for all that was queued.
void synchronize(Queue& queue);
/// The index fault that kernels met so far, as far as they have run; once. `fault.set` says whether there is one.
FaultReport take_fault(Queue& queue);

/// A point in a stream of a device, and when the device passed it.
class Mark {
 public:
  enum class Lane { Compute, Communication };
  explicit Mark(Queue& queue, Lane lane = Lane::Compute);
  ~Mark();
  Mark(Mark&&) noexcept;
  Mark& operator=(Mark&&) noexcept;
  bool passed() const;
  /// Nanoseconds of the steady clock. Waits until the device has passed it.
  std::int64_t time_ns() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Collectives between devices on different GPUs, by NCCL. One call queues the parts of all ranks. A collective
/// that fails, at once or while it runs, is a CudaError of this call or the next, and the one after that works again.
class Collectives {
 public:
  /// Rank i is queues[i]. Null where the build has no NCCL, there are fewer than two queues, or two share a GPU.
  static std::unique_ptr<Collectives> make(const std::vector<Queue*>& queues);
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  ~Collectives();

  /// data[i], on rank i, becomes data[0].
  void broadcast(const std::vector<std::byte*>& data, std::size_t bytes);
  /// Each of `outs`, either one, on rank 0, or one on each rank, becomes the sum of the parts, by rank. The same bits
  /// on all ranks and on every run, but not the bits of another order of sums. Not bool.
  struct Sum {
    std::vector<const std::byte*> parts;
    std::vector<std::byte*> outs;
    std::int64_t count;
    DType dtype;
  };
  /// When a rank began and ended its part.
  struct Span {
    Mark begin, end;
  };
  /// Queues the sums after what was queued so far; what is queued later runs beside them, until finish(). Before that
  /// nobody uses the sums, or gives the memory of sums and parts to others. A span per rank if `timed`.
  std::vector<Span> start_reduce(const std::vector<Sum>& sums, bool timed);
  /// What is queued from now on runs after all that was started.
  void finish();

 private:
  struct State;
  explicit Collectives(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Whether float32 matrix products and convolutions may use TF32 (10 bits of mantissa). Off at first.
inline std::atomic<bool> allow_tf32{false};

}  // namespace tandem::kernels::cuda
