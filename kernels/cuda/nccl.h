#pragma once
// Collectives between GPUs by NCCL: one communicator over all the devices of a group. In builds without NCCL the same
// symbols say so.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>

#include "../dtype.h"

namespace tandem::kernels::cuda {

bool nccl_available();

/// Rank i is the i-th device. A collective is one call per rank, with the same count, dtype and root; each queues its
/// part on a stream of the rank's device, and runs when all ranks' parts have been queued and reached. All ranks issue
/// their collectives in one order: from one thread per rank, or from one thread within a Group.
///
/// Every function throws CudaError on failure, or after abort().
class Communicator {
 public:
  /// Physical devices, all different.
  explicit Communicator(std::span<const int> devices);
  /// Waits for what is queued, unless a collective has failed.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int size() const;

  /// `data` of all ranks becomes `data` of `root`.
  void broadcast(int rank, void* data, std::int64_t count, DType dtype, int root, cudaStream_t stream);
  /// `out` of `root` becomes the sum of all `in`; the other ranks' `out` is not used. `in` may be `out`. Not bool.
  void reduce(int rank, const void* in, void* out, std::int64_t count, DType dtype, int root, cudaStream_t stream);
  /// `out` of all ranks becomes the sum of all `in`, the same bits everywhere. `in` may be `out`. Not bool.
  void all_reduce(int rank, const void* in, void* out, std::int64_t count, DType dtype, cudaStream_t stream);

  /// Throws if a collective has failed since it was queued.
  void check_async() const;
  /// Ends all collectives, running ones and waiting ones, so that their streams go on. From any thread, also while
  /// another one waits for such a stream.
  void abort() noexcept;

  /// The calls of its thread between construction and end() start together.
  class Group {
   public:
    Group();
    /// Ends the group, if end() was not called.
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    void end();

   private:
    bool open_ = true;
  };

 private:
  struct Ranks;
  std::unique_ptr<Ranks> ranks_;
};

}  // namespace tandem::kernels::cuda
