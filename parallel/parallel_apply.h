#pragma once
// Runs one job per device, each on its device's worker.

#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../engine/error.h"
#include "../engine/tree.h"
#include "../nn/module.h"
#include "ledger.h"

namespace tandem::parallel {

/// A replica has thrown. The text names the replica, its device, the module whose call failed, and the tensors that the
/// replica was given. The exception itself is nested (std::rethrow_if_nested gives it back, type and all).
class ReplicaError : public Error {
 public:
  ReplicaError(const std::string& what, std::size_t replica, Device device, std::string module)
      : Error(what), replica_(replica), device_(device), module_(std::move(module)) {}
  std::size_t replica() const { return replica_; }
  Device device() const { return device_; }
  /// The name of the innermost module whose call failed, as in named_modules(); empty for the outermost, and if none
  /// did.
  const std::string& module() const { return module_; }

 private:
  std::size_t replica_;
  Device device_;
  std::string module_;
};

/// Where a job has failed.
struct FailurePlace {
  std::string module;  ///< its name
  std::string text;    ///< more for the message, such as ", in fc1 (Linear), ..."
};
/// Finds the place for job i. `callee` is the innermost module that an exception has come out of, or null.
using PlaceOf = std::function<FailurePlace(std::size_t i, const void* callee)>;

/// Calls job(i) on the worker of devices[i], with the caller's context (grad mode, anomaly mode) and an equal share of
/// its threads, and waits for all. New tensors are made where the caller makes them or, if that is a device of the same
/// kind, on devices[i]. If some throw, the one of the lowest index is rethrown as a ReplicaError, which
/// tells of the others. A single job, and jobs asked for from inside a worker, run in the calling thread.
/// With `exchange`, several jobs have a context().exchange to add tensors up over all; one that ends while others wait
/// there fails them too, and its own failure is the one that is thrown.
void run_on_devices(const std::vector<Device>& devices, const std::function<void(std::size_t)>& job,
                    bool exchange = false, const PlaceOf& place = {});

/// Where the calling code runs: replica `index` of `count`, on `device`. 0 of 1 outside of replicas.
struct ReplicaInfo {
  std::size_t index = 0;
  std::size_t count = 1;
  Device device{};
};
ReplicaInfo current_replica();
bool inside_replica();

namespace detail {

FailurePlace place_in(nn::Module* module, const void* callee,
                      const std::vector<std::pair<std::string, Tensor>>& inputs);

template <class M, class Inputs>
FailurePlace place_of(M& module, const Inputs& inputs, const void* callee) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for_each_tensor(
      inputs, [&](const Tensor& t, const Path& at) { tensors.emplace_back(at.str(), t); }, Path("args"));
  if constexpr (std::derived_from<M, nn::Module>) {
    return place_in(&module, callee, tensors);
  } else {
    return place_in(nullptr, callee, tensors);
  }
}

}  // namespace detail

/// result[i] = f(modules[i], inputs[i]...), where inputs[i] is a tuple; nothing if f gives nothing. What f returns must
/// be movable. With `sync_batch_norm` BatchNorm in training uses the statistics of all inputs.
template <class F, class M, class... Args>
auto parallel_invoke(F&& f, std::vector<M>& modules, std::vector<std::tuple<Args...>>& inputs,
                     const std::vector<Device>& devices, Ledger* ledger = nullptr, bool sync_batch_norm = false) {
  using Result = std::decay_t<std::invoke_result_t<F&, M&, Args&...>>;
  if (modules.size() != inputs.size() || modules.size() != devices.size() || modules.empty()) {
    throw ValueError("parallel_apply: wanted as many modules as inputs and devices, and at least one; got " +
                     std::to_string(modules.size()) + " modules, " + std::to_string(inputs.size()) + " inputs and " +
                     std::to_string(devices.size()) + " devices");
  }
  const auto apply = [&](std::size_t i) -> decltype(auto) {
    const PhaseScope scope(ledger, Phase::Forward, devices[i]);
    return std::apply([&](Args&... args) -> decltype(auto) { return std::invoke(f, modules[i], args...); }, inputs[i]);
  };
  const auto place = [&](std::size_t i, const void* callee) { return detail::place_of(modules[i], inputs[i], callee); };
  if constexpr (std::is_void_v<Result>) {
    run_on_devices(devices, apply, sync_batch_norm, place);
  } else {
    std::vector<std::optional<Result>> slots(modules.size());
    run_on_devices(
        devices, [&](std::size_t i) { slots[i].emplace(apply(i)); }, sync_batch_norm, place);
    std::vector<Result> results;
    for (std::optional<Result>& s : slots) results.push_back(std::move(*s));
    return results;
  }
}

namespace detail {

template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;

/// That of the first tensor in each.
template <class Input>
std::vector<Device> devices_of(const std::vector<Input>& inputs) {
  std::vector<Device> devices;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for_each_tensor(inputs[i], [&](const Tensor& t) {
      if (devices.size() == i && t.defined()) devices.push_back(t.device());
    });
    if (devices.size() == i) {
      throw ValueError("parallel_apply: input " + std::to_string(i) + " holds no tensor that tells the device to run " +
                       "on; give the devices");
    }
  }
  return devices;
}

}  // namespace detail

/// result[i] = modules[i](inputs[i]...); an input that is no tuple is the only argument. Without devices, each module
/// runs where the first tensor of its input is.
template <class M, class Input>
auto parallel_apply(std::vector<M>& modules, std::vector<Input>& inputs, const std::vector<Device>& devices = {},
                    Ledger* ledger = nullptr, bool sync_batch_norm = false) {
  const auto call = [](M& module, auto&... args) -> decltype(auto) { return module(args...); };
  const std::vector<Device> places = devices.empty() ? detail::devices_of(inputs) : devices;
  if constexpr (detail::is_tuple<Input>) {
    return parallel_invoke(call, modules, inputs, places, ledger, sync_batch_norm);
  } else {
    std::vector<std::tuple<Input>> tuples;
    for (const Input& input : inputs) tuples.emplace_back(input);
    return parallel_invoke(call, modules, tuples, places, ledger, sync_batch_norm);
  }
}

}  // namespace tandem::parallel
