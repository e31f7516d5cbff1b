#pragma once
// Optimizers and gradient clipping. Names, defaults and update rules are PyTorch's.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../engine/tensor.h"

namespace tandem::optim {

/// What an optimizer knows beyond its parameters, to be saved and restored exactly.
struct OptimizerState {
  std::string type;                                     ///< "SGD", "Adam", "AdamW"
  std::vector<std::pair<std::string, double>> numbers;  ///< options as "lr", counts as "0.step"
  std::vector<std::pair<std::string, Tensor>> tensors;  ///< "0.exp_avg": of parameter 0
};

/// Base of the optimizers. Holds handles to the parameters, each identity once.
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// Updates every parameter that requires a gradient and has one, in place and off the tape: a later backward through
  /// values that the update has changed is an AutogradError. A gradient whose shape, dtype or device is not the
  /// parameter's is an error that names the parameter's index; then, as after any error, nothing has changed.
  virtual void step();
  /// Clears the gradients, or fills them with zeros.
  virtual void zero_grad(bool set_to_none = true);

  double lr() const { return lr_; }
  /// ValueError unless 0 <= lr < infinity.
  virtual void set_lr(double lr);
  /// With it on, step() throws ValueError at the first gradient with an infinity or NaN, before anything changes. Costs
  /// a pass over the gradients.
  virtual void set_check_finite(bool on) { check_finite_ = on; }
  const std::vector<Tensor>& parameters() const { return parameters_; }

  /// The tensors share memory with the optimizer.
  OptimizerState state() const;
  /// Takes over options and copies of the tensors, each to its parameter's device. If the state is not of this type of
  /// optimizer for parameters of these shapes and dtypes, one ValueError lists every difference, and nothing changes.
  virtual void load_state(const OptimizerState& state);

 protected:
  using OptionValues = std::vector<std::pair<const char*, double>>;
  /// What is kept for one parameter.
  struct Slot {
    std::int64_t steps = 0;
    std::vector<Tensor> tensors;  ///< one for each of `tensor_names`, undefined before the first step
  };

  /// ValueError for an empty list, undefined tensors, non-leaves and integer dtypes.
  Optimizer(const char* type, std::vector<Tensor> parameters, std::vector<const char*> tensor_names, double lr);

  /// All but lr.
  virtual OptionValues options() const = 0;
  /// In the order of options(). Throws ValueError, naming the option, if one is out of its range.
  virtual void set_options(std::span<const double> values) = 0;
  /// Updates p; all tensors are contiguous, of one shape, dtype and device.
  virtual void update(const Tensor& p, const Tensor& grad, Slot& slot) = 0;

 private:
  void prepare_slot(std::size_t index);

  const char* type_;
  std::vector<Tensor> parameters_;
  std::vector<const char*> tensor_names_;
  std::vector<Slot> slots_;
  double lr_;
  bool check_finite_ = false;
};

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  ///< needs momentum and no dampening
};
/// g += weight_decay p; v = momentum v + (1 - dampening) g, at first v = g; p -= lr v, or lr (g + momentum v) with
/// nesterov.
class SGD : public Optimizer {
 public:
  using Options = SGDOptions;
  explicit SGD(std::vector<Tensor> parameters, const SGDOptions& options = {});

 private:
  OptionValues options() const override;
  void set_options(std::span<const double> values) override;
  void update(const Tensor& p, const Tensor& grad, Slot& slot) override;

  SGDOptions options_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};
/// Kingma and Ba 2015, algorithm 1; weight decay is added to the gradient.
class Adam : public Optimizer {
 public:
  using Options = AdamOptions;
  explicit Adam(std::vector<Tensor> parameters, const AdamOptions& options = {});

 protected:
  Adam(const char* type, std::vector<Tensor> parameters, const AdamOptions& options, bool decoupled);

 private:
  OptionValues options() const override;
  void set_options(std::span<const double> values) override;
  void update(const Tensor& p, const Tensor& grad, Slot& slot) override;

  AdamOptions options_;
  bool decoupled_;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};
/// Loshchilov and Hutter 2019: p first shrinks by the factor 1 - lr weight_decay.
class AdamW : public Adam {
 public:
  using Options = AdamWOptions;
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {});
};

/// Scales the gradients so that their common 2-norm is at most `max_norm`, by max_norm / (norm + 1e-6). Returns the
/// norm before. A norm that is not finite makes them so too or, with `error_if_nonfinite`, is a ValueError and changes
/// nothing. Parameters without gradient are skipped.
double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, bool error_if_nonfinite = false);
/// Clamps every element of the gradients to [-limit, limit].
void clip_grad_value_(const std::vector<Tensor>& parameters, double limit);

}  // namespace tandem::optim
