#pragma once
// Optimizers that step on every device of a DataParallel.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../nn/optim.h"
#include "data_parallel.h"

namespace tandem::parallel {

/// An optimizer of type Opt on every device:
///
///     parallel::DataParallel net(model, devices);
///     parallel::Synchronous<optim::Adam> optimizer(net, {.lr = 1e-3});
///     optimizer.zero_grad();
///     net.forward_loss(loss, x, y).backward();   // every device gets the sum of all gradients
///     optimizer.step();                          // on every device: the same change to the same bits
///
/// So parameters are not copied from step to step. It is an Opt over the module's own parameters besides, for schedules
/// and checkpoints. Whatever changes gradients must change them on all devices: zero_grad() and clip_grad_norm_() here,
/// not those of the module, and no gradient of a parameter that is used outside `net`'s calls; step() refuses what it
/// notices. Parameters may be changed by hand, in place, between backward and step or later; that costs a copy. `net`
/// and its module must outlive this; only the parameters that the module has at construction are trained. Devices must
/// be of one kind, as others round differently.
template <class Opt>
class Synchronous final : public Opt {
 public:
  /// ValueError for a module without parameters, or with one that is not a contiguous leaf.
  template <class M>
  explicit Synchronous(DataParallel<M>& net, const typename Opt::Options& options = {})
      : Synchronous(net.synchronize(), options) {}

  void step() override {
    if (failed_) {  // on one device, perhaps, and not on others
      for (auto& o : others_) o->load_state(Opt::state());
    }
    failed_ = true;
    group_.step([this](std::size_t i) {
      if (i == 0) {
        Opt::step();
      } else {
        others_[i - 1]->step();
      }
    });
    failed_ = false;
    if (check_every_ > 0 && steps_++ % check_every_ == 0) group_.check();
  }
  void zero_grad(bool set_to_none = true) override {
    Opt::zero_grad(set_to_none);
    for (auto& o : others_) o->zero_grad(set_to_none);
  }
  void set_lr(double lr) override {
    Opt::set_lr(lr);
    for (auto& o : others_) o->set_lr(lr);
  }
  void set_check_finite(bool on) override {
    Opt::set_check_finite(on);
    for (auto& o : others_) o->set_check_finite(on);
  }
  void load_state(const optim::OptimizerState& state) override {
    Opt::load_state(state);
    for (auto& o : others_) o->load_state(state);
  }

  /// As optim::clip_grad_norm_, on every device.
  double clip_grad_norm_(double max_norm, bool error_if_nonfinite = false) {
    double norm = 0;
    for (const auto& p : group_.on_devices()) norm = optim::clip_grad_norm_(p, max_norm, error_if_nonfinite);
    return norm;
  }
  /// As optim::clip_grad_value_, on every device.
  void clip_grad_value_(double limit) {
    for (const auto& p : group_.on_devices()) optim::clip_grad_value_(p, limit);
  }

  /// See SynchronizedParameters: a sum of the parameters' bits on each device.
  std::vector<std::uint64_t> checksums() const { return group_.checksums(); }
  /// AutogradError, naming a parameter and a device, where these sums differ. step() does this in the first of every
  /// `n` steps, 100 unless set, never for 0; it reads all parameters once.
  void check() const { group_.check(); }
  void set_check_every(std::int64_t n) { check_every_ = n; }

 private:
  Synchronous(SynchronizedParameters group, const typename Opt::Options& options)
      : Opt(group.on_devices()[0], options), group_(std::move(group)) {
    for (std::size_t i = 1; i < group_.on_devices().size(); ++i) {
      others_.push_back(std::make_unique<Opt>(group_.on_devices()[i], options));
    }
  }

  SynchronizedParameters group_;
  std::vector<std::unique_ptr<Opt>> others_;
  bool failed_ = false;  ///< the last step
  std::int64_t steps_ = 0;
  std::int64_t check_every_ = 100;
};

}  // namespace tandem::parallel
