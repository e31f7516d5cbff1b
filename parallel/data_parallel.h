#pragma once
// DataParallel: one module on several devices of one process, as torch.nn.DataParallel.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../engine/random.h"
#include "../nn/module.h"
#include "comm.h"
#include "parallel_apply.h"
#include "replica_store.h"
#include "synchronized_parameters.h"
#include "tree_comm.h"

namespace tandem::parallel {

struct DataParallelOptions {
  /// Where results are gathered; the first device by default. May be any device.
  std::optional<Device> output_device{};
  /// The dimension along which arguments are cut and results are put together; negative counts from the end.
  std::int64_t dim = 0;
  /// How a batch is cut into chunks, one per device.
  Split split = Split::ceil();
  /// What carries parameters and gradients.
  TransportKind transport = TransportKind::Auto;
  /// Whether random functions inside the replicas draw for each sample what the first device would draw for the whole
  /// batch, so that dropout masks do not depend on the devices. Samples must lie along dimension 0 of every random
  /// tensor. Otherwise each device has its own stream of numbers.
  bool same_random_numbers = false;
  /// Whether BatchNorm in training uses the statistics of the whole batch, as on one device.
  bool sync_batch_norm = false;
  /// Parameters are brought up to date, and gradients summed, in pieces of about this many bytes.
  std::int64_t bucket_bytes = std::int64_t{1} << 20;
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
/// ValueError for an empty list and for a device listed twice, DeviceError for devices that do not exist.
void check_devices(const std::vector<Device>& devices, Device output_device);
/// ValueError for options that exclude each other or are out of range.
void check_options(const DataParallelOptions& options);
/// The random numbers of replicas that draw from the first device's generator, each for its rows. Moves that generator
/// on, in the end, as replica 0 did.
class SharedDraws {
 public:
  SharedDraws(bool on, Device home, const std::vector<std::int64_t>& rows);
  ~SharedDraws();
  SharedDraws(const SharedDraws&) = delete;
  SharedDraws& operator=(const SharedDraws&) = delete;
  /// While the result lives, the calling thread draws for replica i.
  ContextGuard enter(std::size_t i);

 private:
  std::vector<SampleRange> ranges_;
};

/// AutogradError when a replica runs in the calling thread.
void check_outermost(const char* what);
/// The text of DataParallel::explain().
std::string explain_call(const nn::Module& module, const NamedTensors& arguments, const std::vector<Device>& devices,
                         const DataParallelOptions& options, const Transport& transport, const ReplicaStore& store);

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
/// behaves by these rules. A DataParallel is not called by a replica.
///
/// Wrapping moves the parameters into flat buffers; their handles stay what they were. A DataParallel is used by one
/// thread at a time.
template <class M>
class DataParallel {
 public:
  /// Refers to `module`, which must outlive this. No devices: all of the module's kind.
  explicit DataParallel(M& module, std::vector<Device> devices = {}, DataParallelOptions options = {})
      : module_(&module), options_(std::move(options)) {
    init(std::move(devices));
  }
  /// Takes the module over.
  explicit DataParallel(M&& module, std::vector<Device> devices = {}, DataParallelOptions options = {})
      : owned_(std::make_unique<M>(std::move(module))), module_(owned_.get()), options_(std::move(options)) {
    init(std::move(devices));
  }

  template <class... Args>
  auto operator()(Args&&... args) {
    return invoke([](M& m, auto&... a) -> decltype(auto) { return m(a...); }, std::forward<Args>(args)...);
  }

  /// The same with f(replica, args...) in the place of the module's forward: a member function, such as &M::encode, or
  /// any callable.
  template <class F, class... Args>
  auto invoke(F&& f, Args&&... args) {
    using Inputs = std::tuple<std::decay_t<Args>...>;
    using Result = std::decay_t<std::invoke_result_t<F&, M&, std::decay_t<Args>&...>>;
    check_outermost("DataParallel");
    std::vector<Tensor> tensors;
    {
      const PhaseScope scope(ledger_.get(), Phase::Check, devices_[0]);
      check_home(*module_, devices_[0]);
      tensors = tensors_of(*module_);
    }
    auto [inputs, plan] = scatter_tree(Inputs(std::forward<Args>(args)...), devices_, options_.dim, options_.split,
                                       ledger_, Path("args"));
    std::vector<M> replicas(plan.devices.size(), *module_);
    {
      const auto copies = store_->replicas(tensors, plan.devices.size(), ledger_);
      for (std::size_t i = 0; i < replicas.size(); ++i) rebind(replicas[i], tensors, copies[i]);
    }
    SharedDraws draws(options_.same_random_numbers, devices_[0], plan.rows);
    const auto run = [&](M& m, auto&... a) -> decltype(auto) {
      const auto own = draws.enter(current_replica().index);
      return std::invoke(f, m, a...);
    };
    if constexpr (std::is_void_v<Result>) {
      parallel_invoke(run, replicas, inputs, plan.devices, ledger_.get(), options_.sync_batch_norm);
    } else {
      std::vector<Result> results =
          parallel_invoke(run, replicas, inputs, plan.devices, ledger_.get(), options_.sync_batch_norm);
      return gather_tree(results, GatherPlan{*options_.output_device, options_.dim, plan.rows, ledger_});
    }
  }

  /// loss(model(inputs...), target) inside each replica, and the mean over the batch, 0-dim, on the output device: only
  /// scalars are gathered. The last argument is the target; `loss` gives the mean over the rows that it is given, as
  /// nn::CrossEntropyLoss{} does, and is weighted by them. Value and gradients are those of one device.
  template <class Loss, class... Args>
  Tensor forward_loss(Loss loss, Args&&... args) {
    static_assert(sizeof...(Args) >= 1, "forward_loss takes the loss, the module's arguments, and the target");
    const auto replica_loss = [this, &loss](M& m, auto&... a) {
      constexpr std::size_t count = sizeof...(a) - 1;
      const auto all = std::tie(a...);
      auto out = [&]<std::size_t... I>(std::index_sequence<I...>) { return m(std::get<I>(all)...); }
      (std::make_index_sequence<count>());
      const PhaseScope scope(ledger_.get(), Phase::Loss, current_replica().device);
      Loss own = loss;
      return WeightedMean<Tensor>{own(out, std::get<count>(all))};
    };
    return invoke(replica_loss, std::forward<Args>(args)...).value;
  }

  /// What a call with these arguments would do, as text; nothing is run, copied or changed.
  template <class... Args>
  std::string explain(const Args&... args) const {
    return explain_call(*module_, named_tensors(std::tie(args...), Path("args")), devices_, options_, *transport_,
                        *store_);
  }

  M& module() { return *module_; }
  const std::vector<Device>& device_ids() const { return devices_; }
  Device output_device() const { return *options_.output_device; }
  /// What carries parameters and gradients between the devices.
  const Transport& transport() const { return *transport_; }
  /// What each device did in the calls so far.
  Ledger& ledger() { return *ledger_; }

  /// While the result lives, every device keeps parameters of its own that are trained: see Synchronous, which calls
  /// this.
  SynchronizedParameters synchronize() {
    ledger_->note("parameters", "synchronous: gradients go to every device");
    return {*module_, store_, ledger_};
  }

  // As the module's own: names have no prefix.
  std::vector<Tensor> parameters() const { return module_->parameters(); }
  nn::StateDict state_dict() const { return module_->state_dict(); }
  nn::LoadReport load_state_dict(const nn::StateDict& state, bool strict = true) {
    return module_->load_state_dict(state, strict);
  }
  void to(Device device) { module_->to(device); }
  void to(DType dtype) { module_->to(dtype); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  void zero_grad() { module_->zero_grad(); }

 private:
  void init(std::vector<Device> devices) {
    devices_ = devices.empty() ? default_devices(*module_) : std::move(devices);
    if (!options_.output_device) options_.output_device = devices_[0];
    check_devices(devices_, *options_.output_device);
    check_options(options_);
    transport_ = make_transport(devices_, options_.transport);
    store_ = std::make_shared<ReplicaStore>(devices_, transport_, options_.bucket_bytes);
    ledger_->note("transport", transport_->description());
  }

  std::unique_ptr<M> owned_;
  M* module_;
  DataParallelOptions options_;
  std::vector<Device> devices_;
  TransportPtr transport_;
  std::shared_ptr<ReplicaStore> store_;
  LedgerPtr ledger_ = std::make_shared<Ledger>();
};

/// One call of DataParallel without keeping anything: parameters stay where they are and are copied anew each time.
template <class M, class... Args>
auto data_parallel(M& module, const std::vector<Device>& devices, const DataParallelOptions& options, Args&&... args) {
  using Inputs = std::tuple<std::decay_t<Args>...>;
  const Device output = options.output_device.value_or(devices.empty() ? cpu() : devices[0]);
  check_devices(devices, output);
  check_outermost("data_parallel");
  auto [inputs, plan] =
      scatter_tree(Inputs(std::forward<Args>(args)...), devices, options.dim, options.split, {}, Path("args"));
  std::vector<M> replicas = replicate(module, plan.devices);
  auto results = parallel_apply(replicas, inputs, plan.devices, nullptr, options.sync_batch_norm);
  return gather_tree(results, GatherPlan{output, options.dim, plan.rows, {}});
}

}  // namespace tandem::parallel
