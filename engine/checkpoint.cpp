// Activation checkpointing: the forward pass keeps only its inputs, and the backward pass computes it again.

#include <optional>

#include "ops_internal.h"

namespace tandem {
namespace {

/// Where the calling thread's random functions draw from on a device.
struct RandomPlace {
  GeneratorState generator;
  std::optional<SampleRange> samples;
};

RandomPlace random_place(Device device) {
  const SampleRange* samples = context().samples;
  return {generator_state(device), samples ? std::optional(*samples) : std::nullopt};
}

/// Draws from another place for a scope.
class RandomGuard {
 public:
  RandomGuard(Device device, const RandomPlace& place)
      : device_(device), samples_(place.samples), generator_(generator_state(device)), outer_(context().samples) {
    set_generator_state(device, place.generator);
    context().samples = samples_ ? &*samples_ : nullptr;
  }
  ~RandomGuard() {
    set_generator_state(device_, generator_);
    context().samples = outer_;
  }
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  Device device_;
  std::optional<SampleRange> samples_;
  GeneratorState generator_;
  SampleRange* outer_;
};

}  // namespace

Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& inputs) {
  if (!context().grad_enabled) return f(inputs);
  const Device device = check_device("checkpoint", [&] {
    std::vector<const Tensor*> p;
    for (const Tensor& t : inputs) p.push_back(&t);
    return p;
  }());
  const RandomPlace random = random_place(device);
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
      const RandomGuard guard(device, random);
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
