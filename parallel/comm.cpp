#include "comm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "../engine/ops_internal.h"
#include "flat_buffer.h"

namespace tandem::parallel {
namespace {

/// A node that tells backward() which ledger to report to.
template <class F>
class CommNode final : public Node {
 public:
  CommNode(const char* name, bool urgent, LedgerPtr ledger, F f)
      : Node(name), urgent_(urgent), ledger_(std::move(ledger)), f_(std::move(f)) {}
  bool is_urgent() const override { return urgent_; }
  void apply(GradContext& c) override { (*f_)(c); }
  void release() override { f_.reset(); }
  Observer* observer() const override { return ledger_.get(); }

 private:
  bool urgent_;
  LedgerPtr ledger_;
  std::optional<F> f_;
};

template <class F>
Ref<Node> comm_node(const char* name, bool urgent, const LedgerPtr& ledger, F f) {
  return Ref<Node>(new CommNode<F>(name, urgent, ledger, std::move(f)));
}

bool any_needs_grad(std::span<const Tensor> tensors) {
  bool any = false;
  for (const Tensor& t : tensors) any = any || needs_grad(t);
  return any;
}

/// An output that shares memory with an input, or could: in-place changes would reach the input behind the tape's back.
void add_piece(Node& node, Tensor& t) {
  node.add_output(t);
  t.impl()->multi_view = true;
}

}  // namespace

Split Split::sizes(std::vector<std::int64_t> sizes) {
  for (const std::int64_t s : sizes) {
    if (s < 1)
      throw ValueError(fmt::format("Split: a chunk has at least 1 element, got sizes {}", fmt::join(sizes, ", ")));
  }
  Split split(Rule::Given);
  split.sizes_ = std::move(sizes);
  return split;
}

std::vector<std::int64_t> Split::operator()(std::int64_t n, std::int64_t k) const {
  if (n == 0) return {0};
  std::vector<std::int64_t> sizes;
  switch (rule_) {
    case Rule::Ceil:
      for (std::int64_t left = n, step = (n + k - 1) / k; left > 0; left -= step) sizes.push_back(std::min(left, step));
      break;
    case Rule::Balanced:
      for (std::int64_t i = 0; i < std::min(n, k); ++i) sizes.push_back(n / k + (i < n % k ? 1 : 0));
      break;
    case Rule::Given:
      sizes = sizes_;
      if (const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
          total != n || std::ssize(sizes) > k) {
        throw ValueError(
            fmt::format("Split: the given sizes {} are {} chunks of {} elements in all, wanted {} elements on "
                        "at most {} devices",
                        fmt::join(sizes, ", "), sizes.size(), total, n, k));
      }
      break;
  }
  return sizes;
}

// ---- scatter and gather

std::vector<Tensor> scatter(const Tensor& x, const std::vector<Device>& devices, const std::vector<std::int64_t>& sizes,
                            std::int64_t dim, const LedgerPtr& ledger) {
  check_defined("scatter", "the tensor", x);
  if (x.dim() == 0) throw ShapeError("scatter: a 0-dim tensor cannot be cut; it can be broadcast");
  const int d = wrap_dim("scatter", dim, x.dim());
  std::int64_t total = 0;
  for (std::int64_t s : sizes) total += s;
  if (sizes.size() != devices.size() || total != x.sizes()[d]) {
    throw ValueError(
        fmt::format("scatter: {} chunks of {} elements in all do not fit {} devices and dimension {} of {}",
                    sizes.size(), total, devices.size(), d, str(x.sizes())));
  }
  std::vector<Tensor> chunks;
  {
    const NoGradGuard no_grad;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Tensor part = narrow(x, d, start, sizes[i]);
      start += sizes[i];
      if (devices[i] == x.device()) {
        chunks.push_back(alias_of(part));
      } else {
        PhaseScope scope(ledger.get(), Phase::Scatter, devices[i]);
        scope.reads(part);
        chunks.push_back(empty(part.sizes(), part.dtype(), devices[i]));
        copy_values(chunks.back(), part);
      }
    }
  }
  if (needs_grad(x)) {
    auto backward = [d, shape = x.sizes(), sizes, devices, home = x.device(), ledger](GradContext& c) {
      std::vector<Tensor> parts;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        Shape part = shape;
        part[d] = sizes[i];
        const Tensor& g = c.grad(i);
        parts.push_back(g.defined() ? g : zeros(part, c.node().outputs()[i].dtype, devices[i]));
      }
      c.set(0, gather(parts, home, d, ledger));
    };
    const Ref<Node> node = comm_node("scatter", false, ledger, std::move(backward));
    node->add_input(x);
    for (Tensor& chunk : chunks) add_piece(*node, chunk);
  }
  return chunks;
}

std::vector<Tensor> scatter(const Tensor& x, const std::vector<Device>& devices, std::int64_t dim,
                            const LedgerPtr& ledger) {
  check_defined("scatter", "the tensor", x);
  if (devices.empty()) throw ValueError("scatter: the list of devices is empty");
  const auto sizes = Split::ceil()(x.size(dim), std::ssize(devices));
  return scatter(x, {devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(sizes.size())}, sizes, dim, ledger);
}

Tensor gather(std::span<const Tensor> tensors, Device device, std::int64_t dim, const LedgerPtr& ledger) {
  if (tensors.empty()) throw ValueError("gather: there are no tensors");
  for (const Tensor& t : tensors) check_defined("gather", "a tensor", t);
  const Tensor& first = tensors[0];
  if (first.dim() == 0) {
    std::vector<Tensor> vectors;
    for (const Tensor& t : tensors) {
      if (t.dim() != 0) throw ShapeError(fmt::format("gather: tensor 0 is 0-dim, but another is {}", str(t.sizes())));
      vectors.push_back(reshape(t, {1}));
    }
    return gather(vectors, device, 0, ledger);
  }
  const int d = wrap_dim("gather", dim, first.dim());
  Shape shape = first.sizes();
  std::vector<std::int64_t> sizes;
  std::vector<Device> devices;
  shape[d] = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    Shape wanted = first.sizes();
    if (t.dim() == first.dim()) wanted[d] = t.sizes()[d];
    if (t.sizes() != wanted || t.dtype() != first.dtype()) {
      throw ShapeError(fmt::format("gather: tensor {} is {}, which does not fit tensor 0, {}, along dimension {}", i,
                                   describe(t), describe(first), d));
    }
    sizes.push_back(t.sizes()[d]);
    devices.push_back(t.device());
    shape[d] += t.sizes()[d];
  }
  Tensor out = empty(shape, first.dtype(), device);
  {
    const NoGradGuard no_grad;
    std::int64_t start = 0;
    for (const Tensor& t : tensors) {
      PhaseScope scope(ledger.get(), Phase::Gather, device);
      scope.reads(t);
      copy_values(narrow(out, d, start, t.sizes()[d]), t);
      start += t.sizes()[d];
    }
  }
  if (any_needs_grad(tensors)) {
    auto backward = [d, sizes, devices, ledger](GradContext& c) {
      const std::vector<Tensor> parts = scatter(c.grad(), devices, sizes, d, ledger);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (c.needs(i)) c.set(i, parts[i]);
      }
    };
    const Ref<Node> node = comm_node("gather", false, ledger, std::move(backward));
    for (const Tensor& t : tensors) node->add_input(t);
    node->add_output(out);
  }
  return out;
}

// ---- reduce

namespace {

/// The defined ones among per_device[i][j] for one j, in the order of devices, checked to be alike.
std::vector<Tensor> contributions(std::span<const std::vector<Tensor>> per_device, std::size_t j) {
  std::vector<Tensor> found;
  for (std::size_t i = 0; i < per_device.size(); ++i) {
    const Tensor& t = per_device[i][j];
    if (!t.defined()) continue;
    if (!found.empty() && (t.sizes() != found[0].sizes() || t.dtype() != found[0].dtype())) {
      throw ShapeError(fmt::format("reduce_add: tensor {} of device {} is {}, wanted one like {}", j, i, describe(t),
                                   describe(found[0])));
    }
    found.push_back(t);
  }
  return found;
}

/// Sums on every device. They are there, and may be let go, once `finish` has been called.
struct Sums {
  std::vector<std::vector<Tensor>> values;
  Finish finish{};
};

Sums start_sums(std::span<const std::vector<Tensor>> per_device, const std::vector<Device>& devices,
                const LedgerPtr& ledger, const TransportPtr& transport) {
  if (per_device.empty()) throw ValueError("reduce_add: there are no tensors");
  if (devices.empty()) throw ValueError("reduce_add: the list of devices is empty");
  std::deque<PhaseScope> scopes;
  for (const Device d : devices) scopes.emplace_back(ledger.get(), Phase::Reduce, d);
  const std::size_t n = per_device[0].size();
  std::vector<std::vector<Tensor>> parts;
  bool recorded = false;
  for (std::size_t j = 0; j < n; ++j) {
    parts.push_back(contributions(per_device, j));
    for (const Tensor& t : parts.back()) {
      recorded = recorded || needs_grad(t);
      scopes[0].reads(t);
    }
  }
  Sums result{{devices.size(), std::vector<Tensor>(n)}};
  std::vector<std::vector<Tensor>>& sums = result.values;
  if (recorded) {
    for (std::size_t j = 0; j < n; ++j) {
      Tensor& sum = sums[0][j];
      for (const Tensor& t : parts[j]) sum = sum.defined() ? add(sum, to(t, devices[0])) : to(t, devices[0]);
      for (std::size_t d = 1; d < devices.size() && sum.defined(); ++d) sums[d][j] = to(sum, devices[d]);
    }
    return result;
  }
  Slots slots;
  for (const auto& p : parts) {
    if (!p.empty()) slots.add(p[0]);
  }
  std::vector<Transport::Reduction> reductions;
  std::vector<std::vector<Tensor>> buffers;  // by dtype, then device
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const std::vector<Tensor> own = slots.buffers(devices[d]);
    buffers.resize(own.size());
    for (std::size_t b = 0; b < own.size(); ++b) {
      buffers[b].push_back(own[b]);
      if (d > 0) scopes[d].reads(buffers[b][0]);
    }
    std::vector<Tensor> places = slots.tensors(own);
    for (std::size_t j = 0, next = 0; j < n; ++j) {
      if (!parts[j].empty()) sums[d][j] = std::move(places[next++]);
    }
  }
  for (std::size_t j = 0; j < n; ++j) {
    if (!parts[j].empty()) reductions.push_back({sums[0][j], std::move(parts[j])});
  }
  const bool timed = ledger != nullptr;
  Transport::Started started = devices.size() == 1 ? transport->start_reduce(reductions, timed)
                                                   : transport->start_all_reduce(reductions, buffers, timed);
  for (std::size_t d = 0; d < devices.size() && !started.times.empty(); ++d) {
    scopes[d].ran_beside(started.times[d].first, started.times[d].second);
  }
  if (started.finish) {
    // A sum that nobody wants is written all the same.
    auto end = [finish = std::make_shared<Finish>(std::move(started.finish)), buffers] { (*finish)(); };
    result.finish = Finish(std::move(end));
  }
  return result;
}

}  // namespace

std::vector<std::vector<Tensor>> all_reduce_coalesced(std::span<const std::vector<Tensor>> per_device,
                                                      const std::vector<Device>& devices, const LedgerPtr& ledger,
                                                      const TransportPtr& transport) {
  Sums sums = start_sums(per_device, devices, ledger, transport);
  sums.finish();
  return std::move(sums.values);
}

std::vector<Tensor> reduce_add_coalesced(std::span<const std::vector<Tensor>> per_device, Device device,
                                         const LedgerPtr& ledger, const TransportPtr& transport) {
  return std::move(all_reduce_coalesced(per_device, {device}, ledger, transport)[0]);
}

Tensor reduce_add(std::span<const Tensor> tensors, Device device) {
  std::vector<std::vector<Tensor>> rows;
  for (const Tensor& t : tensors) rows.push_back({t});
  return reduce_add_coalesced(rows, device)[0];
}

// ---- broadcast

void record_broadcast(std::span<const Tensor> tensors, std::vector<std::vector<Tensor>>& copies,
                      const LedgerPtr& ledger, const TransportPtr& transport,
                      std::span<const std::vector<Tensor>> leaves) {
  std::vector<std::size_t> tracked;
  for (std::size_t j = 0; j < tensors.size(); ++j) {
    if (needs_grad(tensors[j])) tracked.push_back(j);
  }
  if (tracked.empty()) return;
  const std::size_t n = tracked.size();
  const std::size_t k = copies.size();
  std::vector<Device> devices{tensors[tracked[0]].device()};
  for (const std::vector<Tensor>& other : leaves) devices.push_back(other[tracked[0]].device());
  auto backward = [n, k, devices, ledger, transport](GradContext& c) {
    if (context().failed) {
      throw AutogradError(
          "backward: called inside a replica, it reached the parameters of the module itself, which all "
          "replicas share; call it on the result of the DataParallel");
    }
    for (std::size_t j = 0; j < n && devices.size() > 1 && c.to_leaves(); ++j) {
      if (c.node().next()[j].node->hooks()) {
        throw AutogradError(
            "backward: a parameter has a gradient hook, which would change the gradient on the first device alone; "
            "with "
            "Synchronous, hooks go on the replica's parameters, inside forward");
      }
    }
    std::vector<std::vector<Tensor>> grads(k);
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t j = 0; j < n; ++j) grads[i].push_back(c.take_grad(i * n + j));
    }
    Sums sums = start_sums(grads, devices, ledger, transport);
    grads.clear();
    for (std::size_t d = 0; d < devices.size(); ++d) {
      for (std::size_t j = 0; j < n; ++j) {
        if (c.needs(d * n + j)) c.set(d * n + j, std::move(sums.values[d][j]));
      }
    }
    c.finish_with(std::move(sums.finish));
  };
  const Ref<Node> node = comm_node("broadcast", true, ledger, std::move(backward));
  for (std::size_t j : tracked) node->add_input(tensors[j]);
  for (const std::vector<Tensor>& other : leaves) {
    for (std::size_t j : tracked) node->add_input(other[j]);
  }
  for (std::vector<Tensor>& device : copies) {
    for (std::size_t j : tracked) add_piece(*node, device[j]);
  }
}

namespace {

/// broadcast_coalesced() of tensors that are all on `home`.
std::vector<std::vector<Tensor>> broadcast_from(Device home, std::span<const Tensor> tensors,
                                                const std::vector<Device>& devices, const LedgerPtr& ledger) {
  Slots slots;
  for (const Tensor& t : tensors) slots.add(t);
  std::vector<std::vector<Tensor>> copies(devices.size());
  std::vector<Tensor> packed;  // made for the first device that needs it
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] == home) {
      for (const Tensor& t : tensors) copies[i].push_back(alias_of(t));
      continue;
    }
    if (packed.empty()) {
      packed = slots.buffers(home);
      const std::vector<Tensor> places = slots.tensors(packed);
      for (std::size_t j = 0; j < places.size(); ++j) copy_values(places[j], tensors[j]);
    }
    PhaseScope scope(ledger.get(), Phase::Replicate, devices[i]);
    const std::vector<Tensor> buffers = slots.buffers(devices[i]);
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      scope.reads(packed[b]);
      copy_values(buffers[b], packed[b]);
    }
    copies[i] = slots.tensors(buffers);
  }
  record_broadcast(tensors, copies, ledger, copy_transport());
  return copies;
}

}  // namespace

std::vector<std::vector<Tensor>> broadcast_coalesced(std::span<const Tensor> tensors,
                                                     const std::vector<Device>& devices, const LedgerPtr& ledger) {
  if (devices.empty()) throw ValueError("broadcast: the list of devices is empty");
  std::map<Device, std::vector<std::size_t>> by_home;
  for (std::size_t j = 0; j < tensors.size(); ++j) {
    check_defined("broadcast", "a tensor", tensors[j]);
    by_home[tensors[j].device()].push_back(j);
  }
  std::vector<std::vector<Tensor>> all(devices.size(), std::vector<Tensor>(tensors.size()));
  for (const auto& [home, members] : by_home) {
    std::vector<Tensor> own;
    for (const std::size_t j : members) own.push_back(tensors[j]);
    std::vector<std::vector<Tensor>> copies = broadcast_from(home, own, devices, ledger);
    for (std::size_t i = 0; i < devices.size(); ++i) {
      for (std::size_t m = 0; m < members.size(); ++m) all[i][members[m]] = std::move(copies[i][m]);
    }
  }
  return all;
}

std::vector<Tensor> broadcast(const Tensor& x, const std::vector<Device>& devices) {
  std::vector<Tensor> out;
  for (std::vector<Tensor>& copy : broadcast_coalesced(std::span(&x, 1), devices)) out.push_back(std::move(copy[0]));
  return out;
}

}  // namespace tandem::parallel
