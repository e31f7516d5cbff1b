// What follows from a module's list of fields.

#include "module.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "../engine/context.h"
#include "../engine/error.h"
#include "../engine/ops.h"

namespace tandem::nn {
namespace {

enum class Kind { Parameter, Buffer };

/// Calls on_tensor(name, tensor, kind) for every tensor and on_module(name, module) for every module below, in order.
template <class OnTensor, class OnModule>
class Walk final : public FieldVisitor {
 public:
  Walk(OnTensor& on_tensor, OnModule& on_module) : on_tensor_(on_tensor), on_module_(on_module) {}

  void on_parameter(std::string_view name, Tensor& t) override { on_tensor_(full(name), t, Kind::Parameter); }
  void on_buffer(std::string_view name, Tensor& t) override { on_tensor_(full(name), t, Kind::Buffer); }
  void on_module(std::string_view name, Module& module) override {
    const std::string outer = std::exchange(prefix_, full(name) + ".");
    on_module_(prefix_.substr(0, prefix_.size() - 1), module);
    module.visit_fields(*this);
    prefix_ = outer;
  }

 private:
  std::string full(std::string_view name) const { return prefix_ + std::string(name); }

  OnTensor& on_tensor_;
  OnModule& on_module_;
  std::string prefix_;
};

// Fields are visited as mutable; the walks of const functions change nothing.
template <class F>
void for_tensors(const Module& module, F f) {
  const auto ignore = [](const std::string&, Module&) {};
  Walk walk(f, ignore);
  const_cast<Module&>(module).visit_fields(walk);
}

template <class F>
void for_unique_tensors(const Module& module, F f) {
  std::unordered_set<const TensorImpl*> seen;
  for_tensors(module, [&](const std::string& name, Tensor& t, Kind kind) {
    if (seen.insert(t.impl()).second) f(name, t, kind);
  });
}

template <class F>
void for_modules(Module& module, F f) {
  f(std::string(), module);
  const auto ignore = [](const std::string&, Tensor&, Kind) {};
  Walk walk(ignore, f);
  module.visit_fields(walk);
}

NamedTensors named(const Module& module, Kind wanted) {
  NamedTensors result;
  for_unique_tensors(module, [&](const std::string& name, Tensor& t, Kind kind) {
    if (kind == wanted) result.emplace_back(name, t);
  });
  return result;
}

std::vector<Tensor> unnamed(const Module& module, Kind wanted) {
  std::vector<Tensor> result;
  for_unique_tensors(module, [&](const std::string&, Tensor& t, Kind kind) {
    if (kind == wanted) result.push_back(t);
  });
  return result;
}

/// Gives every tensor convert(it) as its data; all are converted before the first is changed.
template <class F>
void convert_data(Module& module, F convert) {
  const NoGradGuard no_grad;
  std::vector<std::pair<Tensor, Tensor>> changes;
  for_unique_tensors(module, [&](const std::string& name, Tensor& t, Kind) {
    if (!t.is_leaf()) throw AutogradError("to: " + name + " is not a leaf, so the module cannot be moved or converted");
    Tensor data = convert(t.detach());
    if (data.device() != t.device() || data.dtype() != t.dtype()) changes.emplace_back(t, std::move(data));
  });
  for (const auto& [t, data] : changes) t.set_data(data);
}

class Children final : public FieldVisitor {
 public:
  void on_parameter(std::string_view, Tensor&) override {}
  void on_buffer(std::string_view, Tensor&) override {}
  void on_module(std::string_view name, Module& module) override { list.emplace_back(name, &module); }

  std::vector<std::pair<std::string, Module*>> list;
};

std::string indented(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return result;
}

}  // namespace

Parameter::Parameter(const Tensor& t, bool requires_grad)
    : Tensor(t.defined() && (!t.is_leaf() || t.impl()->base) ? t.detach() : t) {
  if (defined()) requires_grad_(requires_grad);
}

std::vector<Tensor> Module::parameters() const { return unnamed(*this, Kind::Parameter); }
std::vector<Tensor> Module::buffers() const { return unnamed(*this, Kind::Buffer); }
NamedTensors Module::named_parameters() const { return named(*this, Kind::Parameter); }
NamedTensors Module::named_buffers() const { return named(*this, Kind::Buffer); }

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> result;
  for_modules(*this, [&](const std::string& name, Module& m) { result.emplace_back(name, &m); });
  return result;
}

std::vector<std::pair<std::string, Module*>> Module::named_children() {
  Children children;
  visit_fields(children);
  return children.list;
}

std::int64_t Module::num_parameters() const {
  std::int64_t n = 0;
  for (const Tensor& p : parameters()) n += p.numel();
  return n;
}

StateDict Module::state_dict() const {
  StateDict state;
  for_tensors(*this, [&](const std::string& name, Tensor& t, Kind) { state.emplace_back(name, t.detach()); });
  return state;
}

LoadReport Module::load_state_dict(const StateDict& state, bool strict) {
  std::vector<std::string> problems;
  std::unordered_map<std::string, Tensor> given;
  for (const auto& [name, t] : state) {
    if (!given.emplace(name, t).second) problems.push_back(name + ": given twice");
  }

  LoadReport report;
  std::vector<std::pair<Tensor, Tensor>> copies;
  std::unordered_set<std::string> known;
  for_tensors(*this, [&](const std::string& name, Tensor& t, Kind) {
    known.insert(name);
    const auto found = given.find(name);
    if (found == given.end()) {
      report.missing.push_back(name);
      return;
    }
    const Tensor& source = found->second;
    if (!source.defined() || source.sizes() != t.sizes() || source.dtype() != t.dtype()) {
      problems.push_back(
          fmt::format("{}: wanted {} {}, got {}", name, name_of(t.dtype()), tandem::str(t.sizes()), describe(source)));
    } else {
      copies.emplace_back(t, source);
    }
  });
  for (const auto& [name, t] : state) {
    if (!known.contains(name)) report.unexpected.push_back(name);
  }
  if (strict) {
    for (const std::string& name : report.missing) problems.push_back(name + ": missing");
    for (const std::string& name : report.unexpected) problems.push_back(name + ": unexpected");
  }
  if (!problems.empty()) {
    throw ValueError(
        fmt::format("load_state_dict: the state does not fit {}:\n  {}", type_name(), fmt::join(problems, "\n  ")));
  }

  const NoGradGuard no_grad;
  std::unordered_set<const Storage*> own;
  for (const auto& [t, source] : copies) own.insert(t.impl()->storage.get());
  for (auto& [t, source] : copies) {
    source = source.detach().to(t.device());
    if (own.contains(source.impl()->storage.get())) source = source.clone();
  }
  for (auto& [t, source] : copies) t.copy_(source);
  return report;
}

void Module::to(Device device) {
  convert_data(*this, [&](const Tensor& t) { return t.to(device); });
}

void Module::to(DType dtype) {
  if (!is_floating(dtype)) throw DTypeError(fmt::format("to: wanted a floating dtype, got {}", name_of(dtype)));
  convert_data(*this, [&](const Tensor& t) { return is_floating(t.dtype()) ? t.to(dtype) : t; });
}

void Module::train(bool on) {
  for_modules(*this, [&](const std::string&, Module& m) { m.training = on; });
}

void Module::zero_grad() {
  for (const auto& [name, p] : named_parameters()) {
    if (!p.is_leaf()) {
      throw AutogradError(fmt::format(
          "zero_grad: {} is not a leaf, so it has no gradient: this module is a replica; clear the module's own",
          name));
    }
  }
  for (const Tensor& p : parameters()) p.zero_grad();
}

void Module::requires_grad_(bool on) {
  for (Tensor& p : parameters()) p.requires_grad_(on);
}

void Module::apply(const std::function<void(Module&)>& f) {
  for (const auto& [name, child] : named_children()) child->apply(f);
  f(*this);
}

// ---------------------------------------------------------------- hooks

template <class F>
HookHandle Module::add_hook(Hooks<F>& hooks, F hook) {
  std::erase_if(hooks, [](const auto& h) { return !h->alive; });
  hooks.push_back(std::make_shared<Hook<F>>(std::move(hook)));
  return HookHandle([weak = std::weak_ptr(hooks.back())] {
    if (const auto h = weak.lock()) h->alive = false;
  });
}

HookHandle Module::register_forward_pre_hook(ForwardPreHook hook) { return add_hook(pre_hooks_, std::move(hook)); }
HookHandle Module::register_forward_hook(ForwardHook hook) { return add_hook(hooks_, std::move(hook)); }

// Hooks may register others, so these run over copies of the lists.
void Module::run_pre_hooks(const std::vector<Tensor>& inputs) {
  for (const auto& hook : Hooks<ForwardPreHook>(pre_hooks_)) {
    if (hook->alive) hook->call(*this, inputs);
  }
}

void Module::run_hooks(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
  const std::size_t n = outputs.size();
  for (const auto& hook : Hooks<ForwardHook>(hooks_)) {
    if (hook->alive) hook->call(*this, inputs, outputs);
  }
  if (outputs.size() != n) {
    throw ValueError(fmt::format("{}: a forward hook turned {} outputs into {}", type_name(), n, outputs.size()));
  }
}

// ---------------------------------------------------------------- printing and rebinding

std::string str(const Module& module) {
  std::vector<std::string> lines;
  const std::string extra = module.extra_repr();
  if (!extra.empty()) lines.push_back(extra);
  for (const auto& [name, child] : const_cast<Module&>(module).named_children()) {
    lines.push_back(fmt::format("({}): {}", name, indented(str(*child))));
  }
  if (lines.empty()) return std::string(module.type_name()) + "()";
  if (lines.size() == 1 && !extra.empty()) return fmt::format("{}({})", module.type_name(), extra);
  return fmt::format("{}(\n  {}\n)", module.type_name(), fmt::join(lines, "\n  "));
}

std::ostream& operator<<(std::ostream& out, const Module& module) { return out << str(module); }

void rebind_tensors(Module& module, const std::function<Tensor(const Tensor&)>& f) {
  // Holding the old tensors keeps their addresses from being used again meanwhile.
  std::unordered_map<const TensorImpl*, std::pair<Tensor, Tensor>> replacements;
  for_unique_tensors(module,
                     [&](const std::string&, Tensor& t, Kind) { replacements.emplace(t.impl(), std::pair(t, f(t))); });
  for_tensors(module, [&](const std::string&, Tensor& t, Kind) { t = replacements.at(t.impl()).second; });
}

void detail::note_failed_call(const Module& module) {
  FailedCall* failed = context().failed;
  // Outer calls see the same exception.
  if (!failed || failed->error == std::current_exception()) return;
  *failed = {std::current_exception(), &module};
}

void detail::own_tensors(Module& module) {
  rebind_tensors(module, [](const Tensor& t) {
    Tensor own = t.detach().clone();
    if (t.requires_grad()) own.requires_grad_();
    return own;
  });
}

}  // namespace tandem::nn
