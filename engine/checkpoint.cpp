// Activation checkpointing: the forward pass keeps only its inputs, and the backward pass computes it again.

#include "ops_internal.h"

namespace tandem {
namespace {

/// Sets a device's generator for a scope.
class GeneratorGuard {
 public:
  GeneratorGuard(Device device, GeneratorState state) : device_(device), saved_(generator_state(device)) {
    set_generator_state(device, state);
  }
  ~GeneratorGuard() { set_generator_state(device_, saved_); }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  Device device_;
  GeneratorState saved_;
};

}  // namespace

Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& inputs) {
  if (!context().grad_enabled) return f(inputs);
  const Device device = check_device("checkpoint", [&] {
    std::vector<const Tensor*> p;
    for (const Tensor& t : inputs) p.push_back(&t);
    return p;
  }());
  const GeneratorState random = generator_state(device);
  Tensor out = [&] {
    const NoGradGuard no_grad;
    return f(inputs);
  }();
  std::vector<Saved> kept;
  for (const Tensor& t : inputs) kept.push_back(saved(t));

  const bool exchanged = context().exchange != nullptr;
  auto backward_again = [f, kept = std::move(kept), device, random, exchanged](GradContext& c) {
    if (context().grad_enabled || !c.to_leaves()) {
      throw AutogradError("checkpoint: it works with backward() only, without create_graph");
    }
    std::vector<Tensor> again;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      again.push_back(kept[i].get(c).detach());
      if (c.needs(i)) again.back().requires_grad_();
    }
    const ContextGuard outer(context());
    context().grad_enabled = true;
    static NoExchange alone(
        "inside checkpoint(), backward() runs each replica alone and has no statistics of the others");
    if (exchanged) context().exchange = &alone;
    const Tensor y = [&] {
      const GeneratorGuard guard(device, random);
      return f(again);
    }();
    backward({y}, {c.grad()});
    for (std::size_t i = 0; i < again.size(); ++i) {
      if (c.needs(i)) c.set(i, again[i].grad());
    }
  };
  record("checkpoint", std::span(&out, 1), inputs, std::move(backward_again));
  return out;
}

}  // namespace tandem
