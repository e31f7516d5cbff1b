// backward() and grad(): runs the nodes behind some outputs, each as soon as its gradients are complete, the latest
// recorded first. Nothing recurses; what a run needs to know about a node lies in the run, not in the node.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <exception>
#include <limits>
#include <map>
#include <set>

#include "accumulate.h"
#include "ops_internal.h"

namespace tandem {
namespace {

/// Maps nodes to their numbers in a run: open addressing.
class NodeTable {
 public:
  /// The number of `node`; `fresh` is set when it has been given just now.
  std::uint32_t number(const Node* node, bool* fresh) {
    if (2 * (count_ + 1) > entries_.size()) grow();
    std::size_t at = place(node);
    while (entries_[at].node && entries_[at].node != node) at = (at + 1) & (entries_.size() - 1);
    *fresh = !entries_[at].node;
    if (*fresh) entries_[at] = {node, count_++};
    return entries_[at].number;
  }

 private:
  struct Entry {
    const Node* node = nullptr;
    std::uint32_t number = 0;
  };
  std::size_t place(const Node* node) const {
    return (reinterpret_cast<std::uintptr_t>(node) >> 4) * 0x9e3779b97f4a7c15ULL >> shift_;
  }
  void grow() {
    std::vector<Entry> old(std::max<std::size_t>(32, 2 * entries_.size()));
    old.swap(entries_);
    shift_ = 64 - std::countr_zero(entries_.size());
    for (const Entry& e : old) {
      if (!e.node) continue;
      std::size_t at = place(e.node);
      while (entries_[at].node) at = (at + 1) & (entries_.size() - 1);
      entries_[at] = e;
    }
  }

  std::vector<Entry> entries_;
  std::uint32_t count_ = 0;
  int shift_ = 64;
};

bool has_nan(const Tensor& t) {
  const NoGradGuard no_grad;
  return is_floating(t.dtype()) && t.numel() > 0 && isnan(t).to(kInt64).max().item<std::int64_t>() != 0;
}

void check_gradient(const char* of, const char* who, const Tensor& g, const OutputMeta& wanted) {
  if (g.sizes() != wanted.shape) {
    throw ShapeError(
        fmt::format("{}: the gradient {} has shape {}, wanted {}", who, of, str(g.sizes()), str(wanted.shape)));
  }
  if (g.dtype() != wanted.dtype) {
    throw DTypeError(
        fmt::format("{}: the gradient {} is {}, wanted {}", who, of, name_of(g.dtype()), name_of(wanted.dtype)));
  }
  if (g.device() != wanted.device) {
    throw DeviceError(
        fmt::format("{}: the gradient {} is on {}, wanted {}", who, of, str(g.device()), str(wanted.device)));
  }
}

}  // namespace

class BackwardRun {
 public:
  BackwardRun(BackwardOptions options, bool to_leaves)
      : retain_(options.retain_graph || options.create_graph), to_leaves_(to_leaves) {
    inner_ = context();
    inner_.grad_enabled = options.create_graph;
  }

  BackwardRun(const BackwardRun&) = delete;
  BackwardRun& operator=(const BackwardRun&) = delete;

  void add_root(const Edge& edge, Tensor gradient) {
    roots_.push_back(edge);
    gradients_.push_back(std::move(gradient));
  }
  /// Asks for the gradient that arrives at an edge.
  void capture(const Edge& edge, Tensor* into) { captures_.push_back({edge, into}); }

  void run() {
    discover();
    if (!to_leaves_) mark_needed();
    for (std::size_t i = 0; i < roots_.size(); ++i) {
      Slot& slot = slots_[root_slots_[i]];
      add_part(slot, roots_[i].index, std::numeric_limits<std::uint64_t>::max(), std::move(gradients_[i]));
      --slot.pending;
    }
    const bool parallel = devices_.size() > 1 && !Worker::current();
    if (parallel) {
      run_parallel();
    } else {
      run_here();
    }
  }

 private:
  struct Part {
    std::uint64_t sequence;  ///< of the node that sent it
    std::uint32_t output;
    Tensor grad;
  };
  struct Slot {
    Node* node = nullptr;
    std::uint32_t pending = 0;  ///< gradients still to come
    std::uint32_t first_edge = 0;
    bool needed = true;
    Tensor grad;               ///< of output 0
    std::vector<Tensor> more;  ///< of the others
    std::vector<Part> parts;   ///< while several devices run: added up in the order of one device when complete
  };
  struct Result {
    std::vector<Tensor> grads;
    Finish finish;  ///< of GradContext::finish_with
  };
  struct Unfinished {
    std::uint32_t slot;
    std::vector<Tensor> grads;
    Finish finish;
  };
  struct Capture {
    Edge edge;
    Tensor* into;
  };
  struct Ready {
    std::uint64_t priority;
    std::uint32_t slot;
    bool operator<(const Ready& o) const { return priority < o.priority; }
  };
  struct Queue {
    Device device;
    std::vector<Ready> heap;
    bool active = false;
  };

  static std::uint64_t priority(const Node& n) {
    return n.is_urgent() ? std::numeric_limits<std::uint64_t>::max() : n.sequence();
  }

  std::uint32_t slot_of(Node* node, std::vector<std::uint32_t>* todo) {
    bool fresh = false;
    const std::uint32_t number = table_.number(node, &fresh);
    if (fresh) {
      slots_.emplace_back().node = node;
      todo->push_back(number);
      if (devices_.empty() || node->device() != devices_.back()) {
        if (std::find(devices_.begin(), devices_.end(), node->device()) == devices_.end()) {
          devices_.push_back(node->device());
        }
      }
      if (!inner_.observer) inner_.observer = node->observer();
    }
    return number;
  }

  /// Numbers the nodes behind the roots and counts the gradients that each will get.
  void discover() {
    std::vector<std::uint32_t> todo;
    for (const Edge& root : roots_) {
      const std::uint32_t slot = slot_of(root.node.get(), &todo);
      ++slots_[slot].pending;
      root_slots_.push_back(slot);
    }
    while (!todo.empty()) {
      const std::uint32_t number = todo.back();
      todo.pop_back();
      slots_[number].first_edge = static_cast<std::uint32_t>(edge_slots_.size());
      for (const Edge& edge : slots_[number].node->next()) {
        if (!edge) {
          edge_slots_.push_back(0);
          continue;
        }
        const std::uint32_t next = slot_of(edge.node.get(), &todo);
        ++slots_[next].pending;
        edge_slots_.push_back(next);
      }
    }
  }

  /// For grad(): only nodes that lead to an asked-for input run.
  void mark_needed() {
    std::vector<Slot*> by_age;
    for (Slot& s : slots_) by_age.push_back(&s);
    std::sort(by_age.begin(), by_age.end(),
              [](const Slot* a, const Slot* b) { return a->node->sequence() < b->node->sequence(); });
    std::set<const Node*> wanted;
    for (const Capture& c : captures_) wanted.insert(c.edge.node.get());
    for (Slot* s : by_age) {
      s->needed = false;
      const std::span<const Edge> next = s->node->next();
      for (std::size_t i = 0; i < next.size() && !s->needed; ++i) {
        if (!next[i]) continue;
        const Slot& to = slots_[edge_slots_[s->first_edge + i]];
        s->needed = to.needed || wanted.contains(to.node);
      }
    }
    for (Slot& s : slots_) wanted_.push_back(wanted.contains(s.node));
  }

  bool wants(std::uint32_t slot) const { return to_leaves_ || slots_[slot].needed || wanted_[slot]; }

  void add_part(Slot& slot, std::uint32_t output, std::uint64_t sequence, Tensor g) {
    if (!g.defined()) return;
    if (parallel_) {
      slot.parts.push_back({sequence, output, std::move(g)});
    } else {
      accumulate(grad_at(slot, output), std::move(g));
    }
  }

  static Tensor& grad_at(Slot& slot, std::uint32_t output) {
    if (output == 0) return slot.grad;
    if (slot.more.empty()) slot.more.resize(slot.node->outputs().size() - 1);
    return slot.more[output - 1];
  }

  /// Runs one node and returns the gradients of its inputs.
  Result run_node(Slot& slot) {
    Node& node = *slot.node;
    // Leaves may be shared by graphs that run at the same time; their accumulators lock.
    if (!node.is_accumulator() && node.busy_.exchange(true, std::memory_order_acquire)) {
      throw AutogradError(fmt::format(
          "{}: backward() is already running through this node, in another thread or in a hook", node.name()));
    }
    struct Idle {
      Node& node;
      ~Idle() { node.busy_.store(false, std::memory_order_release); }
    } idle{node};

    std::sort(slot.parts.begin(), slot.parts.end(),
              [](const Part& a, const Part& b) { return a.sequence > b.sequence; });
    for (Part& p : slot.parts) accumulate(grad_at(slot, p.output), std::move(p.grad));
    slot.parts.clear();

    if (const auto hooks = node.hooks()) {
      for (const Node::Hook& hook : *hooks) {
        Tensor& g = grad_at(slot, hook.output);
        if (!g.defined()) continue;
        Tensor changed = hook.call(g);
        if (!changed.defined()) continue;
        check_gradient("returned by a hook", node.name(), changed, node.outputs()[hook.output]);
        g = std::move(changed);
      }
    }
    for (const Capture& c : captures_) {
      if (c.edge.node.get() == &node) *c.into = grad_at(slot, c.edge.index);
    }
    const std::size_t inputs = node.next().size();
    Result all{std::vector<Tensor>(inputs), {}};
    std::vector<Tensor>& result = all.grads;
    if (!slot.needed || (node.is_accumulator() && !to_leaves_)) return all;

    bool any = slot.grad.defined();
    for (const Tensor& g : slot.more) any = any || g.defined();
    if (any) {
      if (node.released_) {
        throw AutogradError(
            fmt::format("{}: backward() ran through this node before and its buffers were freed; pass "
                        "retain_graph to keep them",
                        node.name()));
      }
      bool needed_inline[8];
      std::unique_ptr<bool[]> needed_heap;
      bool* needed = needed_inline;
      if (inputs > std::size(needed_inline)) {
        needed_heap = std::make_unique<bool[]>(inputs);
        needed = needed_heap.get();
      }
      for (std::size_t i = 0; i < inputs; ++i) {
        needed[i] = node.next()[i] && wants(edge_slots_[slot.first_edge + i]);
      }
      const std::size_t outputs = node.outputs().size();
      if (outputs == 1) {
        GradContext c(node, {&slot.grad, 1}, result, {needed, inputs}, to_leaves_);
        node.apply(c);
        all.finish = c.take_finish();
      } else {
        std::vector<Tensor> grads(outputs);
        for (std::uint32_t i = 0; i < outputs; ++i) grads[i] = std::move(grad_at(slot, i));
        GradContext c(node, grads, result, {needed, inputs}, to_leaves_);
        node.apply(c);
        all.finish = c.take_finish();
      }
      if (inner_.anomaly) all.finish();
      for (std::size_t i = 0; i < inputs; ++i) {
        if (!result[i].defined()) continue;
        if (!node.next()[i]) {
          result[i] = Tensor();
          continue;
        }
        const Edge& edge = node.next()[i];
        check_gradient("of an input", node.name(), result[i], edge.node->outputs()[edge.index]);
        if (inner_.anomaly && has_nan(result[i])) {
          throw AutogradError(fmt::format("{} (node {}): its backward gave NaN in the gradient of input {}",
                                          node.name(), node.sequence(), i));
        }
      }
    }
    slot.grad = Tensor();
    slot.more.clear();
    if (!retain_ && !node.is_accumulator()) {
      node.release();
      node.released_ = true;
    }
    return all;
  }

  /// Costs nothing when nobody observes.
  TimeMark mark(Device device) const { return inner_.observer ? TimeMark(device) : TimeMark(0); }

  void run_here() {
    const ContextGuard guard(inner_);
    const TimeMark begin = mark(devices_.front());
    std::vector<Ready> heap;
    for (std::uint32_t s : ready_roots()) heap.push_back({priority(*slots_[s].node), s});
    std::make_heap(heap.begin(), heap.end());
    const auto on_ready = [&](std::uint32_t next) {
      heap.push_back({priority(*slots_[next].node), next});
      std::push_heap(heap.begin(), heap.end());
    };
    while (!heap.empty() || !unfinished_.empty()) {
      if (heap.empty()) {
        Unfinished u = std::move(unfinished_.back());
        unfinished_.pop_back();
        u.finish();
        deliver(u.slot, u.grads, on_ready);
        continue;
      }
      std::pop_heap(heap.begin(), heap.end());
      const std::uint32_t number = heap.back().slot;
      heap.pop_back();
      Result result = run_node(slots_[number]);
      if (result.finish) {
        unfinished_.push_back({number, std::move(result.grads), std::move(result.finish)});
      } else {
        deliver(number, result.grads, on_ready);
      }
    }
    if (inner_.observer) inner_.observer->span("backward", devices_.front(), begin, mark(devices_.front()), 0);
  }

  std::vector<std::uint32_t> ready_roots() const {
    std::vector<std::uint32_t> ready;
    for (std::uint32_t s : root_slots_) {
      if (slots_[s].pending == 0 && std::find(ready.begin(), ready.end(), s) == ready.end()) ready.push_back(s);
    }
    return ready;
  }

  template <class F>
  void deliver(std::uint32_t number, std::vector<Tensor>& grads, F&& on_ready) {
    const Node& node = *slots_[number].node;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      const Edge& edge = node.next()[i];
      if (!edge) continue;
      const std::uint32_t next = edge_slots_[slots_[number].first_edge + i];
      add_part(slots_[next], edge.index, node.sequence(), std::move(grads[i]));
      if (--slots_[next].pending == 0) on_ready(next);
    }
  }

  // ---- several devices: each one's worker runs the nodes of its device

  void run_parallel() {
    parallel_ = true;
    inner_.threads = std::max(1, num_threads() / static_cast<int>(devices_.size()));
    // Parts that were added for the roots are sums already.
    for (std::uint32_t s : root_slots_) {
      Slot& slot = slots_[s];
      for (std::uint32_t i = 0; i < slot.node->outputs().size(); ++i) {
        Tensor& g = grad_at(slot, i);
        if (g.defined()) slot.parts.push_back({std::numeric_limits<std::uint64_t>::max(), i, std::move(g)});
      }
    }
    for (Device d : devices_) queues_.push_back({d, {}, false});
    std::unique_lock lock(mutex_);
    left_ = slots_.size();
    for (std::uint32_t s : ready_roots()) enqueue(s);
    done_.wait(lock, [this] { return active_ == 0 && (left_ == 0 || error_); });
    if (error_) std::rethrow_exception(error_);
  }

  /// With the mutex held.
  void enqueue(std::uint32_t slot) {
    const Node& node = *slots_[slot].node;
    for (Queue& q : queues_) {
      if (q.device != node.device()) continue;
      q.heap.push_back({priority(node), slot});
      std::push_heap(q.heap.begin(), q.heap.end());
      if (!q.active) {
        q.active = true;
        ++active_;
        device_state(q.device).worker.submit([this, &q] { drain(q); });
      }
      return;
    }
  }

  void drain(Queue& q) {
    const ContextGuard guard(inner_);
    const TimeMark begin = mark(q.device);
    std::unique_lock lock(mutex_);
    // What others have not finished is left to the last that still works.
    while ((!q.heap.empty() || (active_ == 1 && !unfinished_.empty())) && !error_) {
      std::uint32_t number = 0;
      Result result;
      const bool is_node = !q.heap.empty();
      if (is_node) {
        std::pop_heap(q.heap.begin(), q.heap.end());
        number = q.heap.back().slot;
        q.heap.pop_back();
      } else {
        number = unfinished_.back().slot;
        result = {std::move(unfinished_.back().grads), std::move(unfinished_.back().finish)};
        unfinished_.pop_back();
      }
      lock.unlock();
      std::exception_ptr error;
      try {
        if (is_node) {
          result = run_node(slots_[number]);
        } else {
          result.finish();
        }
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (is_node) --left_;
      if (error) {
        if (!error_) error_ = error;
        break;
      }
      if (result.finish) {
        unfinished_.push_back({number, std::move(result.grads), std::move(result.finish)});
      } else {
        deliver(number, result.grads, [this](std::uint32_t next) { enqueue(next); });
      }
    }
    if (inner_.observer) inner_.observer->span("backward", q.device, begin, mark(q.device), 0);
    q.active = false;
    // Notified with the lock held: the run may be gone as soon as the waiter sees it.
    if (--active_ == 0) done_.notify_all();
  }

  const bool retain_;
  const bool to_leaves_;
  Context inner_;
  std::vector<Edge> roots_;
  std::vector<Tensor> gradients_;
  std::vector<std::uint32_t> root_slots_;
  std::vector<Capture> captures_;
  std::vector<bool> wanted_;
  NodeTable table_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> edge_slots_;
  std::vector<Device> devices_;
  std::vector<Unfinished> unfinished_;
  bool parallel_ = false;

  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<Queue> queues_;
  std::size_t left_ = 0;
  int active_ = 0;
  std::exception_ptr error_;
};

namespace {

void add_roots(const char* op, BackwardRun& run, const std::vector<Tensor>& outputs,
               const std::vector<Tensor>& gradients) {
  if (outputs.empty()) throw ValueError(fmt::format("{}: there are no outputs", op));
  if (!gradients.empty() && gradients.size() != outputs.size()) {
    throw ValueError(fmt::format("{}: {} outputs but {} gradients", op, outputs.size(), gradients.size()));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& out = outputs[i];
    check_defined(op, "an output", out);
    const Edge edge = gradient_edge(out);
    if (!edge)
      throw AutogradError(
          fmt::format("{}: output {} needs no gradient: nothing was recorded for it: {}", op, i, describe(out)));
    Tensor g = gradients.empty() ? Tensor() : gradients[i];
    if (!g.defined()) {
      if (out.numel() != 1) {
        throw AutogradError(fmt::format("{}: output {} is {}; an output of more than one element needs a gradient", op,
                                        i, describe(out)));
      }
      g = ones(out.sizes(), out.dtype(), out.device());
    }
    check_gradient("given", op, g, {out.sizes(), out.dtype(), out.device()});
    run.add_root(edge, std::move(g));
  }
}

}  // namespace

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients, BackwardOptions options) {
  BackwardRun run(options, true);
  add_roots("backward", run, outputs, gradients);
  run.run();
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients, BackwardOptions options, bool allow_unused) {
  BackwardRun run(options, false);
  add_roots("grad", run, outputs, gradients);
  std::vector<Tensor> result(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Edge edge = gradient_edge(inputs[i]);
    if (!edge) throw AutogradError(fmt::format("grad: input {} needs no gradient: {}", i, describe(inputs[i])));
    run.capture(edge, &result[i]);
  }
  run.run();
  for (std::size_t i = 0; i < inputs.size() && !allow_unused; ++i) {
    if (!result[i].defined()) {
      throw AutogradError(
          fmt::format("grad: the outputs do not depend on input {}: {}; pass allow_unused to get an undefined "
                      "gradient",
                      i, describe(inputs[i])));
    }
  }
  return result;
}

}  // namespace tandem
