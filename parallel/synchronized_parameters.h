#pragma once
// What Synchronous is made of. Internal.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "replica_store.h"

namespace tandem::parallel {

/// The parameters of a DataParallel's module on each of its devices, kept equal.
class SynchronizedParameters {
 public:
  SynchronizedParameters(const nn::Module& module, std::shared_ptr<ReplicaStore> store, LedgerPtr ledger);

  /// In the order of the module's; [0] are the module's own.
  const std::vector<std::vector<Tensor>>& on_devices() const { return parameters_; }
  /// Brings what was changed by hand up to date, then calls step(i) on the worker of each device. An exception of step
  /// comes out as it is. Before anything changes: AutogradError if a gradient is not the same sum, changed as often, on
  /// all devices; DeviceError if the module has moved.
  void step(const std::function<void(std::size_t i)>& step);
  /// Per device, a sum over the parameters, each with a weight of its own, of the bit patterns of their elements: equal
  /// where the devices agree, and different where they drift apart, but blind to elements that change places. What was
  /// changed by hand is brought up to date first.
  std::vector<std::uint64_t> checksums() const;
  /// AutogradError, naming the parameter and the device, where these sums differ.
  void check() const;

 private:
  void check_gradients() const;
  /// Per device and parameter.
  std::vector<std::vector<std::int64_t>> sums() const;
  std::string name_of(std::size_t parameter) const;

  const nn::Module& module_;
  std::shared_ptr<ReplicaStore> store_;
  std::shared_ptr<const void> held_;  ///< keeps the store synchronised
  LedgerPtr ledger_;
  std::vector<Device> devices_;
  std::vector<std::vector<Tensor>> parameters_;
};

}  // namespace tandem::parallel
