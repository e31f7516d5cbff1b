#pragma once
// Where the replicas of one call wait for each other. Internal.

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "../engine/context.h"
#include "../engine/error.h"
#include "../engine/tensor.h"

namespace tandem::parallel {

/// What replicas get that wait for one that has ended.
class ReplicaEnded : public Error {
  using Error::Error;
};

/// The exchange of replicas that run at the same time, replica i on devices[i]. The last to come adds up for all.
class Rendezvous final : public ReplicaExchange {
 public:
  explicit Rendezvous(const std::vector<Device>& devices) : devices_(devices), given_(devices.size()) {}

  std::vector<Tensor> all_reduce(const char* op, const std::vector<Tensor>& tensors) override;
  /// The calling replica has ended: all_reduce(), under way or later, is a ReplicaEnded in the others.
  void leave(bool failed);

 private:
  const std::vector<Device> devices_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<Tensor>> given_, sums_;  ///< by replica
  std::size_t waiting_ = 0;
  std::size_t round_ = 0;
  std::string ended_;  ///< the first replica that has ended, and how
};

}  // namespace tandem::parallel
