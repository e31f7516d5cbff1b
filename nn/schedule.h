#pragma once
// Learning-rate schedules: PyTorch's, in closed form.

#include <cstdint>
#include <functional>

#include "optim.h"

namespace tandem::optim {

/// Sets an optimizer's learning rate as a function of the learning rate that it had at construction and of the number
/// of calls of step(). The optimizer must outlive the schedule. To resume, construct it before Optimizer::load_state,
/// then set_epoch to the saved epoch().
class LRScheduler {
 public:
  using Rule = std::function<double(double base, std::int64_t epoch)>;
  /// Sets the rate of epoch 0.
  LRScheduler(Optimizer& optimizer, Rule rule);

  void step() { set_epoch(epoch_ + 1); }
  std::int64_t epoch() const { return epoch_; }
  /// ValueError if negative.
  void set_epoch(std::int64_t epoch);

 private:
  Optimizer& optimizer_;
  Rule rule_;
  double base_;
  std::int64_t epoch_ = 0;
};

/// base f(epoch).
struct LambdaLR : LRScheduler {
  LambdaLR(Optimizer& optimizer, std::function<double(std::int64_t epoch)> f);
};

/// base gamma^floor(epoch / step_size).
struct StepLR : LRScheduler {
  StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);
};

/// From base at epoch 0 to eta_min at t_max along half a cosine (Loshchilov and Hutter 2017), and back beyond.
struct CosineAnnealingLR : LRScheduler {
  CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min = 0);
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  std::int64_t total_iters = 5;
};
/// base times a factor that goes from start_factor to end_factor in total_iters epochs and stays there: a warm-up.
struct LinearLR : LRScheduler {
  explicit LinearLR(Optimizer& optimizer, const LinearLROptions& options = {});
};

}  // namespace tandem::optim
