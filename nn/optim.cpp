// Optimizers: what they share, and SGD, Adam and AdamW.

#include "optim.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <unordered_set>

#include "../engine/context.h"
#include "../engine/error.h"
#include "../engine/ops.h"
#include "../engine/ops_internal.h"
#include "../engine/runtime.h"

namespace tandem::optim {
namespace {

void check_option(bool ok, const char* optimizer, const char* name, double value, const char* range) {
  if (!ok) throw ValueError(fmt::format("{}: {} must be {}, got {}", optimizer, name, range, value));
}

void check_not_negative(const char* optimizer, const char* name, double value) {
  check_option(value >= 0 && std::isfinite(value), optimizer, name, value, "at least 0 and finite");
}

void check_beta(const char* optimizer, const char* name, double value) {
  check_option(value >= 0 && value < 1, optimizer, name, value, "in [0, 1)");
}

bool all_finite(const Tensor& t) { return std::isfinite(sum(t.detach() * 0).item()); }

}  // namespace

// ---------------------------------------------------------------- Optimizer

Optimizer::Optimizer(const char* type, std::vector<Tensor> parameters, std::vector<const char*> tensor_names, double lr)
    : type_(type), tensor_names_(std::move(tensor_names)) {
  check_not_negative(type_, "lr", lr);
  lr_ = lr;
  if (parameters.empty()) throw ValueError(fmt::format("{}: there are no parameters", type));
  std::unordered_set<const TensorImpl*> seen;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& p = parameters[i];
    if (!p.defined() || !is_floating(p.dtype()) || !p.is_leaf()) {
      throw ValueError(fmt::format("{}: parameter {} is not a floating leaf: {}", type, i, describe(p)));
    }
    if (seen.insert(p.impl()).second) parameters_.push_back(p);
  }
  slots_.resize(parameters_.size());
}

void Optimizer::set_lr(double lr) {
  check_not_negative(type_, "lr", lr);
  lr_ = lr;
}

void Optimizer::zero_grad(bool set_to_none) {
  const NoGradGuard no_grad;
  for (const Tensor& p : parameters_) {
    Tensor grad = p.grad();
    if (!grad.defined()) continue;
    if (set_to_none) {
      p.zero_grad();
    } else {
      if (grad.requires_grad()) p.set_grad(grad = grad.detach());
      grad.zero_();
    }
  }
}

/// Makes the tensors of a slot, or lets them follow a parameter that has moved.
void Optimizer::prepare_slot(std::size_t index) {
  const Tensor& p = parameters_[index];
  Slot& slot = slots_[index];
  slot.tensors.resize(tensor_names_.size());
  for (Tensor& t : slot.tensors)
    t = t.defined() ? t.to(p.device()).to(p.dtype()) : zeros(p.sizes(), p.dtype(), p.device());
}

void Optimizer::step() {
  const NoGradGuard no_grad;
  struct Update {
    std::size_t index;
    Tensor parameter, grad;  // contiguous
  };
  std::vector<Update> updates;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    const Tensor grad = p.requires_grad() ? p.grad() : Tensor();
    if (!grad.defined()) continue;
    if (grad.sizes() != p.sizes()) {
      throw ShapeError(fmt::format("{}: parameter {} is {}, its gradient {}", type_, i, describe(p), describe(grad)));
    }
    if (grad.dtype() != p.dtype()) {
      throw DTypeError(fmt::format("{}: parameter {} is {}, its gradient {}", type_, i, describe(p), describe(grad)));
    }
    if (grad.device() != p.device()) {
      throw DeviceError(fmt::format("{}: parameter {} is {}, its gradient {}", type_, i, describe(p), describe(grad)));
    }
    if (check_finite_ && !all_finite(grad)) {
      throw ValueError(fmt::format("{}: the gradient of parameter {} is not finite", type_, i));
    }
    prepare_slot(i);
    updates.push_back({i, p.contiguous(), grad.contiguous()});
  }

  for (const Update& u : updates) {
    Slot& slot = slots_[u.index];
    ++slot.steps;
    update(u.parameter, u.grad, slot);
    Tensor& p = parameters_[u.index];
    if (u.parameter.is_same(p)) {
      bump_version(p);
    } else {
      p.copy_(u.parameter);
    }
  }
}

OptimizerState Optimizer::state() const {
  OptimizerState state{type_, {{"lr", lr_}}, {}};
  for (const auto& [name, value] : options()) state.numbers.emplace_back(name, value);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.steps == 0) continue;
    state.numbers.emplace_back(fmt::format("{}.step", i), static_cast<double>(slot.steps));
    for (std::size_t k = 0; k < tensor_names_.size(); ++k) {
      state.tensors.emplace_back(fmt::format("{}.{}", i, tensor_names_[k]), slot.tensors[k]);
    }
  }
  return state;
}

void Optimizer::load_state(const OptimizerState& state) {
  std::vector<std::string> problems;
  if (state.type != type_) problems.push_back(fmt::format("wanted the state of {}, got that of {}", type_, state.type));
  std::map<std::string, double> numbers(state.numbers.begin(), state.numbers.end());
  std::map<std::string, Tensor> tensors(state.tensors.begin(), state.tensors.end());

  const auto take_number = [&](const std::string& name) {
    const auto node = numbers.extract(name);
    if (!node) problems.push_back(name + ": missing");
    return node ? node.mapped() : 0.0;
  };
  const double lr = take_number("lr");
  std::vector<double> values;
  for (const auto& [name, value] : options()) values.push_back(take_number(name));

  const NoGradGuard no_grad;
  std::vector<Slot> slots(parameters_.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& p = parameters_[i];
    const std::string step = fmt::format("{}.step", i);
    if (!numbers.contains(step)) continue;
    const double steps = take_number(step);
    if (!(steps >= 1 && steps < 0x1p53 && steps == std::floor(steps))) {
      problems.push_back(fmt::format("{}: wanted a count, got {}", step, steps));
      continue;
    }
    slots[i].steps = static_cast<std::int64_t>(steps);
    for (const char* const tensor_name : tensor_names_) {
      const std::string name = fmt::format("{}.{}", i, tensor_name);
      const auto node = tensors.extract(name);
      if (!node) {
        problems.push_back(name + ": missing");
      } else if (const Tensor& t = node.mapped(); !t.defined() || t.sizes() != p.sizes() || t.dtype() != p.dtype()) {
        problems.push_back(
            fmt::format("{}: wanted {} {}, got {}", name, name_of(p.dtype()), str(p.sizes()), describe(t)));
      } else {
        slots[i].tensors.push_back(t.detach().to(p.device()).clone());
      }
    }
  }
  for (const auto& [name, value] : numbers) problems.push_back(name + ": unexpected");
  for (const auto& [name, t] : tensors) problems.push_back(name + ": unexpected");
  if (!problems.empty()) {
    throw ValueError(
        fmt::format("load_state: the state does not fit this {}:\n  {}", type_, fmt::join(problems, "\n  ")));
  }

  check_not_negative(type_, "lr", lr);
  set_options(values);
  lr_ = lr;
  slots_ = std::move(slots);
}

// ---------------------------------------------------------------- SGD

namespace {

const SGDOptions& checked(const SGDOptions& o) {
  check_not_negative("SGD", "momentum", o.momentum);
  check_option(std::isfinite(o.dampening), "SGD", "dampening", o.dampening, "finite");
  check_not_negative("SGD", "weight_decay", o.weight_decay);
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0)) {
    throw ValueError("SGD: nesterov needs a momentum above 0 and no dampening");
  }
  return o;
}

std::vector<const char*> sgd_tensors(const SGDOptions& o) {
  return o.momentum != 0 ? std::vector{"momentum_buffer"} : std::vector<const char*>();
}

}  // namespace

SGD::SGD(std::vector<Tensor> parameters, const SGDOptions& options)
    : Optimizer("SGD", std::move(parameters), sgd_tensors(checked(options)), options.lr), options_(options) {}

Optimizer::OptionValues SGD::options() const {
  return {{"momentum", options_.momentum},
          {"dampening", options_.dampening},
          {"weight_decay", options_.weight_decay},
          {"nesterov", options_.nesterov ? 1 : 0}};
}

void SGD::set_options(std::span<const double> v) {
  const SGDOptions next{lr(), v[0], v[1], v[2], v[3] != 0};
  if ((next.momentum != 0) != (options_.momentum != 0)) {
    throw ValueError(fmt::format("SGD: a state with momentum {} does not fit an optimizer with momentum {}",
                                 next.momentum, options_.momentum));
  }
  options_ = checked(next);
}

void SGD::update(const Tensor& p, const Tensor& grad, Slot& slot) {
  kernels::Stream stream = stream_for(p.device());
  const Tensor velocity = slot.tensors.empty() ? Tensor() : slot.tensors[0];
  backend(p.device())
      .sgd_step(
          stream, raw(p), raw(grad), raw_or_null(velocity),
          {lr(), options_.momentum, options_.dampening, options_.weight_decay, options_.nesterov, slot.steps == 1});
}

// ---------------------------------------------------------------- Adam and AdamW

namespace {

const AdamOptions& checked(const char* type, const AdamOptions& o) {
  check_beta(type, "beta1", o.beta1);
  check_beta(type, "beta2", o.beta2);
  check_not_negative(type, "eps", o.eps);
  check_not_negative(type, "weight_decay", o.weight_decay);
  return o;
}

}  // namespace

Adam::Adam(const char* type, std::vector<Tensor> parameters, const AdamOptions& options, bool decoupled)
    : Optimizer(type, std::move(parameters), {"exp_avg", "exp_avg_sq"}, options.lr),
      options_(checked(type, options)),
      decoupled_(decoupled) {}

Adam::Adam(std::vector<Tensor> parameters, const AdamOptions& options)
    : Adam("Adam", std::move(parameters), options, false) {}

AdamW::AdamW(std::vector<Tensor> parameters, const AdamWOptions& o)
    : Adam("AdamW", std::move(parameters), {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay}, true) {}

Optimizer::OptionValues Adam::options() const {
  return {{"beta1", options_.beta1},
          {"beta2", options_.beta2},
          {"eps", options_.eps},
          {"weight_decay", options_.weight_decay}};
}

void Adam::set_options(std::span<const double> v) {
  options_ = checked(decoupled_ ? "AdamW" : "Adam", {lr(), v[0], v[1], v[2], v[3]});
}

void Adam::update(const Tensor& p, const Tensor& grad, Slot& slot) {
  kernels::Stream stream = stream_for(p.device());
  backend(p.device())
      .adam_step(stream, raw(p), raw(grad), raw(slot.tensors[0]), raw(slot.tensors[1]),
                 {lr(), options_.beta1, options_.beta2, options_.eps, options_.weight_decay, slot.steps, decoupled_});
}

// ---------------------------------------------------------------- clipping

namespace {

/// The gradients there are, each once.
std::vector<Tensor> gradients(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> grads;
  std::unordered_set<const TensorImpl*> seen;
  for (const Tensor& p : parameters) {
    if (p.defined() && seen.insert(p.impl()).second && p.grad().defined()) grads.push_back(p.grad());
  }
  return grads;
}

}  // namespace

double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, bool error_if_nonfinite) {
  check_option(max_norm >= 0, "clip_grad_norm_", "max_norm", max_norm, "at least 0");
  const NoGradGuard no_grad;
  std::vector<Tensor> grads = gradients(parameters);
  if (grads.empty()) return 0;
  std::vector<Tensor> norms;
  for (const Tensor& g : grads) norms.push_back(norm(g).to(kFloat64).to(grads[0].device()));
  const double total = norm(stack(norms)).item();
  if (error_if_nonfinite && !std::isfinite(total)) {
    throw ValueError(fmt::format("clip_grad_norm_: the norm of the gradients is {}", total));
  }
  const double scale = max_norm / (total + 1e-6);
  if (!(scale >= 1)) {
    for (Tensor& g : grads) g.mul_(scale);
  }
  return total;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, double limit) {
  check_option(limit >= 0, "clip_grad_value_", "limit", limit, "at least 0");
  const NoGradGuard no_grad;
  for (Tensor& g : gradients(parameters)) g.clamp_(-limit, limit);
}

}  // namespace tandem::optim
