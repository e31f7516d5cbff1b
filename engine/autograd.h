#pragma once
// The tape: nodes, how operations record themselves, and how gradients flow back.

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "context.h"
#include "small_vector.h"
#include "tensor.h"

namespace tandem {

/// Shape, dtype and device of a node's output, which its gradient must have.
struct OutputMeta {
  Shape shape;
  DType dtype = DType::Float32;
  Device device{};
};

class GradContext;

/// One recorded operation. Its edges lead to the nodes that made its inputs; tensors own the nodes that made them, so
/// a tape frees itself. Nodes run in backward() in descending sequence, urgent ones first, those of different devices
/// at the same time.
class Node : public RefCounted<Node> {
 public:
  /// `name` must outlive the node (a literal).
  explicit Node(const char* name);
  virtual ~Node();

  const char* name() const { return name_; }
  std::uint64_t sequence() const { return sequence_; }
  /// The device whose worker runs it: that of its first output.
  Device device() const { return outputs_.empty() ? Device{} : outputs()[0].device; }
  std::span<const Edge> next() const { return next_.view(); }
  std::span<const OutputMeta> outputs() const { return outputs_.view(); }
  /// Whether its saved tensors have been let go.
  bool released() const { return released_; }
  virtual bool is_accumulator() const { return false; }
  /// Whether it runs as soon as it can, before others that are ready.
  virtual bool is_urgent() const { return is_accumulator(); }
  /// Where to report the time spent on a graph that holds this node, or null.
  virtual Observer* observer() const { return nullptr; }

  /// Adds an input. An undefined tensor, or one that needs no gradient, gives an empty edge.
  void add_input(const Tensor& input);
  /// Makes `t` output number `outputs().size()` of this node.
  void add_output(Tensor& t);
  void add_output_meta(OutputMeta meta) { outputs_.push_back(std::move(meta)); }
  void add_edge(Edge edge) { next_.push_back(std::move(edge)); }

  /// Computes the gradients of the inputs.
  virtual void apply(GradContext& context) = 0;
  /// Lets the saved tensors go.
  virtual void release() {}

  static void destroy(Node* n);

  struct Hook {
    std::uint64_t id;
    std::uint32_t output;
    TensorHook call;
  };
  /// Called on the gradient of an output before apply(). Not while backward() runs through this node.
  std::uint64_t add_hook(std::uint32_t output, TensorHook call);
  void remove_hook(std::uint64_t id);
  /// Null if there are none.
  std::shared_ptr<const std::vector<Hook>> hooks() const;

 protected:
  /// Replaces the meta of a node's only output.
  void set_output_meta(OutputMeta meta) { outputs_[0] = std::move(meta); }

 private:
  friend class BackwardRun;
  const char* name_;
  std::uint64_t sequence_;
  SmallVector<Edge, 3> next_;
  SmallVector<OutputMeta, 1> outputs_;
  std::shared_ptr<const std::vector<Hook>> hooks_;
  std::atomic<bool> busy_{false};
  bool released_ = false;
  Node* next_dead_ = nullptr;
};

/// How many nodes exist in the process.
std::int64_t live_nodes();

/// The end of work that has begun: done when called or, at the latest, when this goes. Never more than once.
class Finish {
 public:
  Finish() = default;
  explicit Finish(std::function<void()> work) : work_(std::move(work)) {}
  Finish(Finish&& other) noexcept : work_(std::exchange(other.work_, {})) {}
  Finish& operator=(Finish&& other) noexcept {
    std::swap(work_, other.work_);
    return *this;
  }
  ~Finish();

  explicit operator bool() const { return static_cast<bool>(work_); }
  void operator()() {
    if (work_) std::exchange(work_, {})();
  }

 private:
  std::function<void()> work_;
};

/// What a backward function works with.
class GradContext {
 public:
  GradContext(const Node& node, std::span<Tensor> outputs, std::span<Tensor> inputs, std::span<const bool> needed,
              bool to_leaves)
      : node_(node), outputs_(outputs), inputs_(inputs), needed_(needed), to_leaves_(to_leaves) {}

  /// The gradient of output i. May be undefined where a node has several outputs.
  const Tensor& grad(std::size_t i = 0) const { return outputs_[i]; }
  std::size_t grad_count() const { return outputs_.size(); }
  /// Whether anybody asks for the gradient of input i.
  bool needs(std::size_t i) const { return needed_[i]; }
  std::size_t input_count() const { return inputs_.size(); }
  /// The shape that the gradient of input i must have; for inputs that are needed.
  const Shape& input_shape(std::size_t i) const {
    const Edge& edge = node_.next()[i];
    return edge.node->outputs()[edge.index].shape;
  }
  /// Gives the gradient of input i. Unset ones stay undefined, which means that there is none.
  void set(std::size_t i, Tensor grad) { inputs_[i] = std::move(grad); }
  const Node& node() const { return node_; }
  /// The gradients that were set are still being made, beside whatever the devices do next. They are left alone until
  /// `finish` has been called, which is when there is nothing else to do.
  void finish_with(Finish finish) { finish_ = std::move(finish); }
  Finish take_finish() { return std::move(finish_); }
  /// Lets go of the gradient of output i, so that its memory can be used again.
  Tensor take_grad(std::size_t i = 0) { return std::move(outputs_[i]); }
  /// Whether gradients go to the .grad of leaves, or only to the inputs that grad() was asked for.
  bool to_leaves() const { return to_leaves_; }

 private:
  const Node& node_;
  std::span<Tensor> outputs_;
  std::span<Tensor> inputs_;
  std::span<const bool> needed_;
  bool to_leaves_;
  Finish finish_;
};

/// A tensor kept for backward, with the version that it had.
class Saved {
 public:
  Saved() = default;
  /// The tensor; AutogradError when it was changed in place since. Undefined if an undefined one was saved.
  Tensor get(const GradContext& c) const;
  const Tensor& peek() const { return tensor_; }

 private:
  friend Saved saved(const Tensor& input);
  friend Saved saved_output(const Tensor& output, std::uint32_t index);
  Tensor tensor_;  ///< off the tape, so that a node never owns itself; `edge_` or `output_` put it back
  Edge edge_;
  std::uint32_t version_ = 0;
  std::int32_t output_ = -1;  ///< which output of the node that keeps it
};
Saved saved(const Tensor& input);
/// `output` is, or will be, output `index` of the node that keeps it.
Saved saved_output(const Tensor& output, std::uint32_t index = 0);
/// saved(input), or nothing.
inline Saved saved_if(bool wanted, const Tensor& input) { return wanted ? saved(input) : Saved(); }

/// A node around a callable `void(GradContext&)`.
template <class F>
class FunctionNode final : public Node {
 public:
  FunctionNode(const char* name, F f) : Node(name), f_(std::move(f)) {}
  void apply(GradContext& c) override { (*f_)(c); }
  void release() override { f_.reset(); }

 private:
  std::optional<F> f_;
};

/// Whether an operation on these tensors must be recorded.
template <class... T>
bool needs_grad(const T&... t) {
  return context().grad_enabled && (false || ... || (t.defined() && t.requires_grad()));
}

/// Records that `out` was computed from `inputs`, with the function that gives the inputs' gradients. Call it when
/// needs_grad(inputs...), on a fresh tensor or a fresh view. This is all there is to a differentiable function of your
/// own:
///
///     Tensor cube(const Tensor& x) {
///       Tensor y = x.detach() * x.detach() * x.detach();
///       if (needs_grad(x)) {
///         record("cube", y, {x}, [x = saved(x)](GradContext& c) { c.set(0, c.grad() * 3 * square(x.get(c))); });
///       }
///       return y;
///     }
///
/// Written with differentiable functions, as here, it can be differentiated twice.
template <class F>
Tensor& record(const char* name, Tensor& out, std::initializer_list<std::reference_wrapper<const Tensor>> inputs,
               F backward) {
  auto node = Ref<Node>(new FunctionNode<F>(name, std::move(backward)));
  for (const Tensor& t : inputs) node->add_input(t);
  node->add_output(out);
  return out;
}
/// As above for any number of inputs and outputs. An undefined output keeps its number.
template <class F>
void record(const char* name, std::span<Tensor> outs, std::span<const Tensor> inputs, F backward) {
  auto node = Ref<Node>(new FunctionNode<F>(name, std::move(backward)));
  for (const Tensor& t : inputs) node->add_input(t);
  for (Tensor& t : outs) node->add_output(t);
}

struct BackwardOptions {
  bool retain_graph = false;  ///< keep saved tensors for another backward; implied by create_graph
  bool create_graph = false;  ///< record the backward pass itself
};

/// Sums d(outputs)/d(leaf), weighted by `gradients`, into the .grad of every leaf. A scalar output needs no gradient
/// (1 is meant); others do: AutogradError. An error leaves gradients of leaves that were finished in place, and the
/// engine usable. One thread at a time may run through a node: AutogradError for the second.
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients = {},
              BackwardOptions options = {});

/// The gradients of `inputs` instead, leaving .grad alone. An input that the outputs do not depend on is an
/// AutogradError, or gives an undefined tensor with allow_unused.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients = {}, BackwardOptions options = {},
                         bool allow_unused = false);

/// Runs f(inputs) without keeping what its backward needs, and runs it again in backward. Random draws repeat.
/// A sync_batch_norm() in f is a ValueError in backward.
Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& inputs);

/// The tape behind `t` as a table: sequence, name, device, output shape, and inputs, latest first.
std::string tape_table(const Tensor& t);
/// The tape behind `t` in Graphviz's DOT language.
std::string tape_dot(const Tensor& t);

/// The edge that stands for `t` on the tape; empty when it needs no gradient.
Edge gradient_edge(const Tensor& t);

}  // namespace tandem
