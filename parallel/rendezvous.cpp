#include "rendezvous.h"

#include <fmt/format.h>

#include <utility>

#include "comm.h"

namespace tandem::parallel {

std::vector<Tensor> Rendezvous::all_reduce(const char* op, const std::vector<Tensor>& tensors) {
  const auto replica = static_cast<std::size_t>(context().replica);
  std::unique_lock lock(mutex_);
  const std::size_t round = round_;
  if (ended_.empty()) {
    given_[replica] = tensors;
    for (const std::vector<Tensor>& other : given_) {
      if (other.empty() || other.size() == tensors.size()) continue;
      throw ValueError(fmt::format("{}: replica {} came with {} tensors, another replica with {}", op, replica,
                                   tensors.size(), other.size()));
    }
    if (waiting_ + 1 == devices_.size()) {
      sums_ = broadcast_coalesced(reduce_add_coalesced(given_, devices_[0]), devices_);
      for (std::vector<Tensor>& given : given_) given.clear();
      waiting_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      ++waiting_;
      changed_.wait(lock, [&] { return round_ != round || !ended_.empty(); });
    }
  }
  if (round_ == round) {
    throw ReplicaEnded(fmt::format("{}: {}, but every replica must call it equally often", op, ended_));
  }
  return std::move(sums_[replica]);
}

void Rendezvous::leave(bool failed) {
  const std::scoped_lock lock(mutex_);
  if (!ended_.empty()) return;
  const Context& c = context();
  ended_ = fmt::format("replica {} on {} has {}", c.replica, str(c.device), failed ? "failed" : "returned");
  changed_.notify_all();
}

}  // namespace tandem::parallel
