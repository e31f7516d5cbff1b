// Nodes of the tape, saved tensors, and the accumulators of leaves.

#include <fmt/format.h>

#include <limits>

#include "accumulate.h"
#include "ops_internal.h"

namespace tandem {
namespace {

std::atomic<std::uint64_t> next_sequence{1};
std::atomic<std::int64_t> node_count{0};
std::mutex hooks_mutex;

thread_local Node* dead_list = nullptr;
thread_local bool destroying = false;

}  // namespace

std::int64_t live_nodes() { return node_count.load(); }

Node::Node(const char* name) : name_(name), sequence_(next_sequence.fetch_add(1, std::memory_order_relaxed)) {
  node_count.fetch_add(1, std::memory_order_relaxed);
}

Node::~Node() { node_count.fetch_sub(1, std::memory_order_relaxed); }

void Node::destroy(Node* n) {
  // Freeing a node frees its inputs' nodes. A list instead of recursion: a chain of a million nodes needs no stack.
  n->next_dead_ = dead_list;
  dead_list = n;
  if (destroying) return;
  destroying = true;
  while (Node* dead = dead_list) {
    dead_list = dead->next_dead_;
    delete dead;
  }
  destroying = false;
}

void Node::add_input(const Tensor& input) { next_.push_back(gradient_edge(input)); }

void Node::add_output(Tensor& t) {
  if (!t.defined()) {
    outputs_.push_back({});
    return;
  }
  TensorImpl& i = *t.impl();
  if (!i.meta) i.meta = std::make_unique<AutogradMeta>();
  i.meta->edge = {Ref<Node>(this), static_cast<std::uint32_t>(outputs_.size())};
  i.meta->is_leaf = false;
  i.requires_grad = true;
  outputs_.push_back({i.shape, i.dtype, i.storage->device()});
}

std::uint64_t Node::add_hook(std::uint32_t output, TensorHook call) {
  static std::uint64_t next_id = 1;
  const std::scoped_lock lock(hooks_mutex);
  auto list = hooks_ ? std::make_shared<std::vector<Hook>>(*hooks_) : std::make_shared<std::vector<Hook>>();
  list->push_back({next_id, output, std::move(call)});
  hooks_ = std::move(list);
  return next_id++;
}

void Node::remove_hook(std::uint64_t id) {
  const std::scoped_lock lock(hooks_mutex);
  if (!hooks_) return;
  auto list = std::make_shared<std::vector<Hook>>(*hooks_);
  std::erase_if(*list, [id](const Hook& h) { return h.id == id; });
  hooks_ = list->empty() ? nullptr : std::move(list);
}

std::shared_ptr<const std::vector<Node::Hook>> Node::hooks() const {
  const std::scoped_lock lock(hooks_mutex);
  return hooks_;
}

Saved saved(const Tensor& input) {
  Saved s;
  if (!input.defined()) return s;
  s.version_ = input.version();
  // Not the tensor itself: a later in-place change could give it a history that leads to the node that keeps it.
  s.edge_ = gradient_edge(input);
  s.tensor_ = alias_of(input);
  return s;
}

Saved saved_output(const Tensor& output, std::uint32_t index) {
  Saved s;
  s.version_ = output.version();
  s.tensor_ = alias_of(output);
  s.output_ = static_cast<std::int32_t>(index);
  return s;
}

Tensor Saved::get(const GradContext& c) const {
  if (!tensor_.defined()) return {};
  if (tensor_.version() != version_) {
    throw AutogradError(
        fmt::format("{}: {} was saved for backward at version {} and has been changed in place since: it is "
                    "at version {}; clone() it before the change, or change it after backward()",
                    c.node().name(), describe(tensor_), version_, tensor_.version()));
  }
  if (!context().grad_enabled) return tensor_;
  Edge edge = edge_;
  if (output_ >= 0) edge = {Ref<Node>(const_cast<Node*>(&c.node())), static_cast<std::uint32_t>(output_)};
  if (!edge) return tensor_;
  Tensor t = alias_of(tensor_);
  t.impl()->meta = std::make_unique<AutogradMeta>();
  t.impl()->meta->is_leaf = edge.node->is_accumulator();
  t.impl()->meta->edge = std::move(edge);
  t.impl()->requires_grad = true;
  return t;
}

Finish::~Finish() {
  try {
    (*this)();
  } catch (...) {  // whoever lets it go uncalled has an error of his own
  }
}

Accumulate::Accumulate(const TensorImpl& leaf) : Node("accumulate") {
  add_output_meta({leaf.shape, leaf.dtype, leaf.storage->device()});
}

void Accumulate::retarget(const TensorImpl& leaf) { set_output_meta({leaf.shape, leaf.dtype, leaf.storage->device()}); }

Accumulate& accumulator_of(TensorImpl& leaf) {
  if (!leaf.meta) {
    leaf.meta = std::make_unique<AutogradMeta>();
    leaf.meta->edge = {Ref<Node>(new Accumulate(leaf)), 0};
  }
  return static_cast<Accumulate&>(*leaf.meta->edge.node);
}

bool is_exclusive(const Tensor& t) {
  const TensorImpl& i = *t.impl();
  return i.ref_count() == 1 && (i.exclusive || i.storage->ref_count() == 1) && i.contiguous;
}

void accumulate(Tensor& sum, Tensor value) {
  if (!sum.defined()) {
    sum = std::move(value);
  } else if (context().grad_enabled || !is_exclusive(sum)) {
    sum = add(sum, value);
    bump_version(sum);  // which counts what was added, in place or not
  } else {
    sum.add_(value);
  }
}

void Accumulate::apply(GradContext& c) {
  Tensor g = c.take_grad();
  const std::scoped_lock lock(mutex_);
  if (!grad_.defined()) {
    grad_ = context().grad_enabled || is_exclusive(g) ? std::move(g) : clone(g);
  } else if (context().grad_enabled || grad_.requires_grad()) {
    grad_ = add(grad_, g);
  } else {
    grad_.add_(g);
  }
}

Tensor Accumulate::grad() const {
  const std::scoped_lock lock(mutex_);
  return grad_;
}

void Accumulate::set_grad(Tensor grad) {
  const std::scoped_lock lock(mutex_);
  std::swap(grad_, grad);
}

}  // namespace tandem
