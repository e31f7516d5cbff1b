#include "synchronized_parameters.h"

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <utility>

#include "../engine/ops_internal.h"
#include "parallel_apply.h"

namespace tandem::parallel {
namespace {

/// The elements' bits as numbers of 32 bits.
Tensor bits_of(const Tensor& t) {
  const auto words = static_cast<std::int64_t>(t.nbytes() / size_of(kInt32));
  Tensor flat = alias_of(t.contiguous());
  TensorImpl& i = *flat.impl();
  i.offset *= static_cast<std::int64_t>(size_of(t.dtype()) / size_of(kInt32));
  i.dtype = kInt32;
  i.shape = {words};
  i.strides = {1};
  i.numel = words;
  return flat;
}

}  // namespace

SynchronizedParameters::SynchronizedParameters(const nn::Module& module, std::shared_ptr<ReplicaStore> store,
                                               LedgerPtr ledger)
    : module_(module), store_(std::move(store)), ledger_(std::move(ledger)), devices_(store_->devices()) {
  check_home(module, devices_[0]);
  held_ = store_->synchronize(module, ledger_);
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    std::vector<Tensor>& own = parameters_.emplace_back();
    for (const Tensor& p : module.parameters()) own.push_back(store_->on_device(p, i));
  }
}

std::string SynchronizedParameters::name_of(std::size_t parameter) const {
  for (const auto& [name, p] : module_.named_parameters()) {
    if (p.is_same(parameters_[0][parameter])) return name;
  }
  return fmt::format("{} (no longer of the module)", parameter);
}

void SynchronizedParameters::check_gradients() const {
  const auto history = [](const Tensor& grad) { return grad.defined() ? std::optional(grad.version()) : std::nullopt; };
  for (std::size_t j = 0; j < parameters_[0].size(); ++j) {
    for (std::size_t i = 1; i < devices_.size(); ++i) {
      if (history(parameters_[0][j].grad()) == history(parameters_[i][j].grad())) continue;
      throw AutogradError(fmt::format(
          "Synchronous: the gradient of parameter '{}' has changed on {} but not on {}, or the other way round: use "
          "zero_grad(), clip_grad_norm_() and clip_grad_value_() of the Synchronous optimizer, which reach every "
          "device, and parameters only inside the DataParallel's calls",
          name_of(j), str(devices_[0]), str(devices_[i])));
    }
  }
}

void SynchronizedParameters::step(const std::function<void(std::size_t)>& step) {
  check_home(module_, devices_[0]);
  const std::vector<Tensor> tensors = tensors_of(module_);
  store_->refresh(tensors, ledger_);
  check_gradients();
  try {
    run_on_devices(devices_, [&](std::size_t i) {
      const PhaseScope scope(ledger_.get(), Phase::Step, devices_[i]);
      step(i);
    });
  } catch (const ReplicaError& e) {
    std::rethrow_if_nested(e);
    throw;
  }
  store_->mark_current(tensors);
}

std::vector<std::vector<std::int64_t>> SynchronizedParameters::sums() const {
  const NoGradGuard no_grad;
  store_->refresh(tensors_of(module_), ledger_);
  std::vector<Tensor> queued;  // all, before the first is waited for
  for (const std::vector<Tensor>& own : parameters_) {
    std::vector<Tensor> all;
    for (const Tensor& p : own) all.push_back(sum(bits_of(p)));
    queued.push_back(stack(all));
  }
  std::vector<std::vector<std::int64_t>> values;
  for (const Tensor& t : queued) values.push_back(t.to_vector<std::int64_t>());
  return values;
}

std::vector<std::uint64_t> SynchronizedParameters::checksums() const {
  std::vector<std::uint64_t> all;
  for (const std::vector<std::int64_t>& own : sums()) {
    std::uint64_t total = 0;
    for (const std::int64_t s : own) total = total * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(s);
    all.push_back(total);
  }
  return all;
}

void SynchronizedParameters::check() const {
  const std::vector<std::vector<std::int64_t>> all = sums();
  for (std::size_t i = 1; i < all.size(); ++i) {
    for (std::size_t j = 0; j < all[i].size(); ++j) {
      if (all[i][j] == all[0][j]) continue;
      throw AutogradError(fmt::format("Synchronous: parameter '{}' has other bits on {} than on {}", name_of(j),
                                      str(devices_[i]), str(devices_[0])));
    }
  }
}

}  // namespace tandem::parallel
