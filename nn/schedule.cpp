// Learning-rate schedules.

#include "schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "../engine/error.h"

namespace tandem::optim {
namespace {

std::int64_t positive(const char* schedule, const char* name, std::int64_t value) {
  if (value < 1) throw ValueError(fmt::format("{}: {} must be at least 1, got {}", schedule, name, value));
  return value;
}

}  // namespace

LRScheduler::LRScheduler(Optimizer& optimizer, Rule rule)
    : optimizer_(optimizer), rule_(std::move(rule)), base_(optimizer.lr()) {
  set_epoch(0);
}

void LRScheduler::set_epoch(std::int64_t epoch) {
  if (epoch < 0) throw ValueError(fmt::format("LRScheduler: epoch must be at least 0, got {}", epoch));
  optimizer_.set_lr(rule_(base_, epoch));
  epoch_ = epoch;
}

LambdaLR::LambdaLR(Optimizer& optimizer, std::function<double(std::int64_t)> f)
    : LRScheduler(optimizer, [f = std::move(f)](double base, std::int64_t epoch) { return base * f(epoch); }) {}

StepLR::StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma)
    : LRScheduler(optimizer, [n = positive("StepLR", "step_size", step_size), gamma](double base, std::int64_t epoch) {
        return base * std::pow(gamma, static_cast<double>(epoch / n));
      }) {}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min)
    : LRScheduler(optimizer,
                  [n = positive("CosineAnnealingLR", "t_max", t_max), eta_min](double base, std::int64_t epoch) {
                    const double angle = std::numbers::pi * static_cast<double>(epoch) / static_cast<double>(n);
                    return eta_min + (base - eta_min) * (1 + std::cos(angle)) / 2;
                  }) {}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options)
    : LRScheduler(optimizer, [o = options, n = positive("LinearLR", "total_iters", options.total_iters)](
                                 double base, std::int64_t epoch) {
        const double done = static_cast<double>(std::min(epoch, n)) / static_cast<double>(n);
        return base * (o.start_factor + (o.end_factor - o.start_factor) * done);
      }) {}

}  // namespace tandem::optim
