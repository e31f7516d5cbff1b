#pragma once
// DataParallel: one module on several devices of one process, as torch.nn.DataParallel.

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../nn/module.h"
#include "comm.h"
#include "parallel_apply.h"
#include "replica_store.h"
#include "tree_comm.h"

namespace tandem::parallel {

struct DataParallelOptions {
  /// Where results are gathered; the first device by default. May be any device.
  std::optional<Device> output_device{};
  /// The dimension along which arguments are cut and results are put together; negative counts from the end.
  std::int64_t dim = 0;
  /// Whether NCCL carries parameters and gradients where it can. Without it, sums run in the order of the devices.
  bool nccl = true;
  /// Whether BatchNorm in training uses the statistics of the whole batch, as on one device.
  bool sync_batch_norm = false;
};

/// Copies of `module` on `devices`: the first shares its tensors, the others have tensors that are broadcast from them.
/// Parameters of the copies are not leaves: gradients flow back to the module, summed in the order of the devices.
/// The module must be on devices[0], else DeviceError.
template <class M>
std::vector<M> replicate(const M& module, const std::vector<Device>& devices) {
  if (devices.empty()) throw ValueError("replicate: the list of devices is empty");
  check_home(module, devices[0]);
  const std::vector<Tensor> tensors = tensors_of(module);
  const auto copies = broadcast_coalesced(tensors, devices);
  std::vector<M> replicas(devices.size(), module);
  for (std::size_t i = 0; i < devices.size(); ++i) rebind(replicas[i], tensors, copies[i]);
  return replicas;
}

/// Every device of the kind that the module is on.
std::vector<Device> default_devices(const nn::Module& module);
/// ValueError for an empty list, DeviceError for devices that do not exist.
void check_devices(const std::vector<Device>& devices, Device output_device);

/// Runs a module on chunks of a batch, one per device, at the same time:
///
///     parallel::DataParallel net(model, {cpu(0), cpu(1)});
///     Tensor loss = cross_entropy(net(x), y);
///     loss.backward();   // gradients are summed into model's own parameters
///
/// A call cuts the tensors in its arguments (tuples, vectors, maps, optionals and TANDEM_TREE structs are walked),
/// brings the replicas up to date, runs forward on each device's worker, and gathers the results on the output device;
/// a 0-dim result becomes a vector with one element per replica. Replica 0 shares the module's tensors, so in-place
/// changes of buffers there last; all else that forward changes in a replica is lost. Any number of devices, one too,
/// behaves by these rules.
///
/// Wrapping moves the parameters into flat buffers; their handles stay what they were. A DataParallel is used by one
/// thread at a time.
template <class M>
class DataParallel {
 public:
  /// Refers to `module`, which must outlive this. No devices: all of the module's kind.
  explicit DataParallel(M& module, std::vector<Device> devices = {}, DataParallelOptions options = {})
      : module_(&module), options_(options) {
    init(std::move(devices));
  }
  /// Takes the module over.
  explicit DataParallel(M&& module, std::vector<Device> devices = {}, DataParallelOptions options = {})
      : owned_(std::make_unique<M>(std::move(module))), module_(owned_.get()), options_(options) {
    init(std::move(devices));
  }

  template <class... Args>
  auto operator()(Args&&... args) {
    using Inputs = std::tuple<std::decay_t<Args>...>;
    using Result = std::decay_t<decltype((*module_)(std::declval<std::decay_t<Args>&>()...))>;
    std::vector<Tensor> tensors;
    {
      const PhaseScope scope(ledger_.get(), Phase::Check, devices_[0]);
      check_home(*module_, devices_[0]);
      tensors = tensors_of(*module_);
    }
    std::vector<Device> used;
    std::vector<Inputs> inputs =
        scatter_tree(Inputs(std::forward<Args>(args)...), devices_, options_.dim, &used, ledger_, Path("args"));
    std::vector<M> replicas(used.size(), *module_);
    {
      const auto copies = store_->replicas(tensors, used.size(), ledger_);
      for (std::size_t i = 0; i < used.size(); ++i) rebind(replicas[i], tensors, copies[i]);
    }
    if constexpr (std::is_void_v<Result>) {
      parallel_apply(replicas, inputs, used, ledger_.get(), options_.sync_batch_norm);
    } else {
      std::vector<Result> results = parallel_apply(replicas, inputs, used, ledger_.get(), options_.sync_batch_norm);
      return gather_tree(results, *options_.output_device, options_.dim, ledger_);
    }
  }

  M& module() { return *module_; }
  const std::vector<Device>& device_ids() const { return devices_; }
  Device output_device() const { return *options_.output_device; }
  /// What carries parameters and gradients between the devices.
  const Transport& transport() const { return *transport_; }
  /// What each device did in the calls so far.
  Ledger& ledger() { return *ledger_; }

  // As the module's own: names have no prefix.
  std::vector<Tensor> parameters() const { return module_->parameters(); }
  nn::StateDict state_dict() const { return module_->state_dict(); }
  nn::LoadReport load_state_dict(const nn::StateDict& state, bool strict = true) {
    return module_->load_state_dict(state, strict);
  }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  void zero_grad() { module_->zero_grad(); }

 private:
  void init(std::vector<Device> devices) {
    devices_ = devices.empty() ? default_devices(*module_) : std::move(devices);
    if (!options_.output_device) options_.output_device = devices_[0];
    check_devices(devices_, *options_.output_device);
    transport_ = options_.nccl ? make_transport(devices_) : copy_transport();
    store_ = std::make_unique<ReplicaStore>(devices_, transport_);
  }

  std::unique_ptr<M> owned_;
  M* module_;
  DataParallelOptions options_;
  std::vector<Device> devices_;
  TransportPtr transport_;
  std::unique_ptr<ReplicaStore> store_;
  LedgerPtr ledger_ = std::make_shared<Ledger>();
};

/// One call of DataParallel without keeping anything: parameters stay where they are and are copied anew each time.
template <class M, class... Args>
auto data_parallel(M& module, const std::vector<Device>& devices, const DataParallelOptions& options, Args&&... args) {
  using Inputs = std::tuple<std::decay_t<Args>...>;
  const Device output = options.output_device.value_or(devices.empty() ? cpu() : devices[0]);
  check_devices(devices, output);
  std::vector<Device> used;
  std::vector<Inputs> inputs =
      scatter_tree(Inputs(std::forward<Args>(args)...), devices, options.dim, &used, {}, Path("args"));
  std::vector<M> replicas = replicate(module, used);
  auto results = parallel_apply(replicas, inputs, used, nullptr, options.sync_batch_norm);
  return gather_tree(results, output, options.dim);
}

}  // namespace tandem::parallel
