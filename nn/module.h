#pragma once
// Modules: plain structs that list their fields once, and what follows from the list.
//
//     struct Mlp : nn::Module {
//       nn::Linear fc1{64, 128}, fc2{128, 10};
//       Tensor forward(const Tensor& x) { return fc2(relu(fc1(x))); }
//       TANDEM_MODULE(Mlp, fc1, fc2)
//     };
//
// Modules are values, and tensors are handles: a copy of a module shares its tensors until they are rebound.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../engine/for_each.h"
#include "../engine/tensor.h"
#include "../engine/tree.h"

namespace tandem::nn {

struct Module;

/// A tensor that is trained. Undefined: absent, as a layer's bias may be.
struct Parameter : Tensor {
  Parameter() = default;
  /// A leaf that is no view is taken as it is and told to require a gradient; of another tensor, the elements are taken
  /// off the tape.
  Parameter(const Tensor& t, bool requires_grad = true);  // NOLINT(google-explicit-constructor)
};

/// A tensor that belongs to a module's state but is not trained, as running statistics.
struct Buffer : Tensor {
  Buffer() = default;
  Buffer(const Tensor& t) : Tensor(t) {}  // NOLINT(google-explicit-constructor)
};

/// Is shown the fields of one module, in the order of its list. Undefined tensors are left out. The elements of a field
/// that holds several come as "name.0", "name.1", ... or "name.key".
class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;
  virtual void on_parameter(std::string_view name, Tensor& parameter) = 0;
  virtual void on_buffer(std::string_view name, Tensor& buffer) = 0;
  virtual void on_module(std::string_view name, Module& module) = 0;
};

/// Names and tensors, in order.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using StateDict = NamedTensors;

/// What load_state_dict found to differ and, not being strict, let pass.
struct LoadReport {
  std::vector<std::string> missing;     ///< names of the module that the dict lacks
  std::vector<std::string> unexpected;  ///< names of the dict that the module lacks
};

/// Called before forward, with the tensors of its arguments.
using ForwardPreHook = std::function<void(Module&, const std::vector<Tensor>& inputs)>;
/// Called after forward. A tensor of `outputs` that the hook replaces is replaced in the result.
using ForwardHook = std::function<void(Module&, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs)>;

/// Base of all modules. Functions that give tensors give each identity once, under its first name, unless said
/// otherwise; a module's own fields come in the order of its list, submodules in their place.
struct Module {
  bool training = true;

  Module() = default;
  Module(const Module&) = default;
  Module(Module&&) = default;
  Module& operator=(const Module&) = default;
  Module& operator=(Module&&) = default;
  virtual ~Module() = default;

  // ---- written by TANDEM_MODULE
  virtual const char* type_name() const = 0;
  virtual void visit_fields(FieldVisitor& visitor) = 0;
  /// What printing shows between the parentheses: "in_features=64, out_features=128, bias=True".
  virtual std::string extra_repr() const { return {}; }

  std::vector<Tensor> parameters() const;
  std::vector<Tensor> buffers() const;
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  /// This module, named "", and all below it.
  std::vector<std::pair<std::string, Module*>> named_modules();
  std::vector<std::pair<std::string, Module*>> named_children();
  /// Elements of all parameters.
  std::int64_t num_parameters() const;

  /// Parameters and buffers, off the tape, sharing memory with the module; tied ones under each of their names.
  StateDict state_dict() const;
  /// Copies the values of `state` into the module's tensors, whatever device they are on. Shapes and dtypes must agree
  /// and, if strict, names; else one ValueError lists every difference, and the module is as before.
  LoadReport load_state_dict(const StateDict& state, bool strict = true);

  /// Moves every parameter and buffer, with gradients. Handles held elsewhere, as by an optimizer, follow; ties last.
  /// AutogradError on a replica, whose parameters are not leaves.
  void to(Device device);
  /// Converts those that are floating. DTypeError unless `dtype` is.
  void to(DType dtype);

  /// Sets `training` here and below.
  void train(bool on = true);
  void eval() { train(false); }
  /// Clears the gradients of all parameters.
  void zero_grad();
  /// Freezes or unfreezes all parameters.
  void requires_grad_(bool on = true);
  /// Calls f on every module, submodules first.
  void apply(const std::function<void(Module&)>& f);

  /// Hooks run in the order of registration, once per replica, on its tensors. Copies of the module made later have
  /// them too, and lose them with the original; a hook registered on a copy is the copy's alone.
  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);

  // ---- for `operator()`
  bool has_hooks() const { return !pre_hooks_.empty() || !hooks_.empty(); }
  void run_pre_hooks(const std::vector<Tensor>& inputs);
  void run_hooks(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs);

 private:
  template <class F>
  struct Hook {
    explicit Hook(F f) : call(std::move(f)) {}
    F call;
    std::atomic<bool> alive{true};
  };
  template <class F>
  using Hooks = std::vector<std::shared_ptr<Hook<F>>>;
  template <class F>
  static HookHandle add_hook(Hooks<F>& hooks, F hook);

  Hooks<ForwardPreHook> pre_hooks_;
  Hooks<ForwardHook> hooks_;
};

/// As PyTorch prints a module.
std::string str(const Module& module);
std::ostream& operator<<(std::ostream& out, const Module& module);

/// Replaces every parameter and buffer by f(it), called once per identity; ties last. The new tensors may be on any
/// device and need not be leaves: so a copy becomes a replica. Nothing is replaced if f throws.
void rebind_tensors(Module& module, const std::function<Tensor(const Tensor&)>& f);

/// A copy with tensors of its own, ties kept; parameters are leaves without gradients.
template <std::derived_from<Module> M>
M deepcopy(const M& module);

// ---------------------------------------------------------------- what the macro writes

/// Lists the parameters, buffers, submodules, and optionals, vectors, arrays and maps of these, that make up the struct
/// in which it stands; at most 80. Gives the struct its call operator: forward with hooks around it.
#define TANDEM_MODULE(...) TANDEM_MODULE_FIELDS(__VA_ARGS__, )
#define TANDEM_MODULE_FIELDS(Type, ...)                                                     \
  const char* type_name() const override { return #Type; }                                  \
  void visit_fields([[maybe_unused]] ::tandem::nn::FieldVisitor& tandem_visitor) override { \
    TANDEM_FOR_EACH(TANDEM_VISIT_FIELD, Type, __VA_ARGS__)                                  \
  }                                                                                         \
  template <class... TandemArgs>                                                            \
  decltype(auto) operator()(TandemArgs&&... tandem_args) {                                  \
    return ::tandem::nn::call(*this, ::std::forward<TandemArgs>(tandem_args)...);           \
  }
#define TANDEM_VISIT_FIELD(Type, name) ::tandem::nn::visit_field(tandem_visitor, #name, name);

template <class T>
void visit_field(FieldVisitor& visitor, std::string_view name, T& field);

namespace detail {

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <class T>
concept NamedMap = requires(T& t) {
  requires std::convertible_to<decltype(t.begin()->first), std::string_view>;
};
template <class T>
concept List = requires(T& t) {
  t.size();
  t[std::size_t{}];
};

}  // namespace detail

template <class T>
void visit_field(FieldVisitor& visitor, std::string_view name, T& field) {
  const auto dotted = [&](std::string_view key) { return std::string(name) + "." + std::string(key); };
  if constexpr (std::derived_from<T, Module>) {
    visitor.on_module(name, field);
  } else if constexpr (std::same_as<T, Parameter>) {
    if (field.defined()) visitor.on_parameter(name, field);
  } else if constexpr (std::same_as<T, Buffer>) {
    if (field.defined()) visitor.on_buffer(name, field);
  } else if constexpr (detail::is_optional<T>) {
    if (field) visit_field(visitor, name, *field);
  } else if constexpr (detail::NamedMap<T>) {
    for (auto& [key, value] : field) visit_field(visitor, dotted(key), value);
  } else if constexpr (detail::List<T>) {
    for (std::size_t i = 0; i < field.size(); ++i) visit_field(visitor, dotted(std::to_string(i)), field[i]);
  } else {
    static_assert(!sizeof(T),
                  "TANDEM_MODULE lists nn::Parameter, nn::Buffer, modules, and optionals, vectors, arrays "
                  "and string maps of these; a plain Tensor must be one of the first two, and pointers to "
                  "modules cannot be copied into replicas");
  }
}

namespace detail {

template <class M, class... Args>
auto call_with_hooks(M& module, Args&&... args) -> decltype(module.forward(std::forward<Args>(args)...)) {
  using Result = decltype(module.forward(std::forward<Args>(args)...));
  if (!module.has_hooks()) return module.forward(std::forward<Args>(args)...);
  const std::vector<Tensor> inputs = collect_tensors(std::tie(args...));
  module.run_pre_hooks(inputs);
  if constexpr (std::is_void_v<Result>) {
    module.forward(std::forward<Args>(args)...);
    std::vector<Tensor> none;
    module.run_hooks(inputs, none);
  } else {
    Result result = module.forward(std::forward<Args>(args)...);
    std::vector<Tensor> outputs = collect_tensors(result);
    module.run_hooks(inputs, outputs);
    if constexpr (!std::is_const_v<std::remove_reference_t<Result>>) {
      for_each_tensor(result, [next = outputs.begin()](Tensor& t) mutable { t = *next++; });
    }
    return static_cast<Result&&>(result);
  }
}

/// Called while an exception leaves the module's call: tells the replica that runs, if any.
void note_failed_call(const Module& module);
void own_tensors(Module& module);

}  // namespace detail

/// Runs forward with the hooks around it.
template <class M, class... Args>
auto call(M& module, Args&&... args) -> decltype(module.forward(std::forward<Args>(args)...)) {
  try {
    return detail::call_with_hooks(module, std::forward<Args>(args)...);
  } catch (...) {
    detail::note_failed_call(module);
    throw;
  }
}

template <std::derived_from<Module> M>
M deepcopy(const M& module) {
  M copy = module;
  detail::own_tensors(copy);
  return copy;
}

}  // namespace tandem::nn
