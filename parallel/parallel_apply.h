#pragma once
// Runs one job per device, each on its device's worker.

#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../engine/error.h"
#include "ledger.h"

namespace tandem::parallel {

/// A replica has thrown. The exception itself is nested (std::rethrow_if_nested gives it back, type and all).
class ReplicaError : public Error {
 public:
  ReplicaError(const std::string& what, std::size_t replica, Device device)
      : Error(what), replica_(replica), device_(device) {}
  std::size_t replica() const { return replica_; }
  Device device() const { return device_; }

 private:
  std::size_t replica_;
  Device device_;
};

/// Calls job(i) on the worker of devices[i], with the caller's context (grad mode, anomaly mode) and an equal share of
/// its threads, and waits for all. If some throw, the one of the lowest index is rethrown as a ReplicaError, which
/// counts the others. A single job, and jobs asked for from inside a worker, run in the calling thread.
/// With `exchange`, several jobs have a context().exchange to add tensors up over all; one that ends while others wait
/// there fails them too, and its own failure is the one that is thrown.
void run_on_devices(const std::vector<Device>& devices, const std::function<void(std::size_t)>& job,
                    bool exchange = false);

/// Where the calling code runs: replica `index` of `count`, on `device`. 0 of 1 outside of replicas.
struct ReplicaInfo {
  std::size_t index = 0;
  std::size_t count = 1;
  Device device{};
};
ReplicaInfo current_replica();

/// result[i] = modules[i](inputs[i]...), where inputs[i] is a tuple. What forward returns must be movable. With
/// `sync_batch_norm` BatchNorm in training uses the statistics of all inputs.
template <class M, class... Args>
auto parallel_apply(std::vector<M>& modules, std::vector<std::tuple<Args...>>& inputs,
                    const std::vector<Device>& devices, Ledger* ledger = nullptr, bool sync_batch_norm = false) {
  using Result = std::decay_t<decltype(modules[0](std::declval<Args&>()...))>;
  if (modules.size() != inputs.size() || modules.size() != devices.size() || modules.empty()) {
    throw ValueError("parallel_apply: wanted as many modules as inputs and devices, and at least one");
  }
  const auto apply = [&](std::size_t i) -> decltype(auto) {
    const PhaseScope scope(ledger, Phase::Forward, devices[i]);
    return std::apply([&](Args&... args) -> decltype(auto) { return modules[i](args...); }, inputs[i]);
  };
  if constexpr (std::is_void_v<Result>) {
    run_on_devices(devices, apply, sync_batch_norm);
  } else {
    std::vector<std::optional<Result>> slots(modules.size());
    run_on_devices(
        devices, [&](std::size_t i) { slots[i].emplace(apply(i)); }, sync_batch_norm);
    std::vector<Result> results;
    for (std::optional<Result>& s : slots) results.push_back(std::move(*s));
    return results;
  }
}

}  // namespace tandem::parallel
