#include "replica_store.h"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "../engine/ops_internal.h"
#include "flat_buffer.h"

namespace tandem::parallel {
namespace {

/// Whether a tensor can show other memory, and flat one.
bool can_move(const Tensor& t) { return t.is_leaf() && !t.impl()->base && t.is_contiguous(); }

class Collector final : public nn::FieldVisitor {
 public:
  void on_parameter(std::string_view, Tensor& t) override { add(t); }
  void on_buffer(std::string_view, Tensor& t) override { add(t); }
  void on_module(std::string_view, nn::Module& m) override { m.visit_fields(*this); }
  std::vector<Tensor> found;

 private:
  void add(const Tensor& t) {
    if (seen_.insert(t.impl()).second) found.push_back(t);
  }

  std::unordered_set<const TensorImpl*> seen_;
};

}  // namespace

std::vector<Tensor> tensors_of(const nn::Module& module) {
  Collector collector;
  const_cast<nn::Module&>(module).visit_fields(collector);
  return std::move(collector.found);
}

void rebind(nn::Module& replica, const std::vector<Tensor>& tensors, const std::vector<Tensor>& copies) {
  std::unordered_map<const TensorImpl*, const Tensor*> to;
  for (std::size_t j = 0; j < tensors.size(); ++j) to.emplace(tensors[j].impl(), &copies[j]);
  nn::rebind_tensors(replica, [&](const Tensor& t) { return *to.at(t.impl()); });
}

void check_home(const nn::Module& module, Device home) {
  const auto check = [&](const nn::NamedTensors& tensors, const char* kind) {
    for (const auto& [name, t] : tensors) {
      if (t.device() == home) continue;
      throw DeviceError(
          fmt::format("DataParallel: {} '{}' is on {}, but the module's tensors must be on the first device, {}; "
                      "call module.to({}) first",
                      kind, name, str(t.device()), str(home), str(home)));
    }
  };
  // Names are made only when something is wrong.
  for (const Tensor& t : tensors_of(module)) {
    if (t.device() == home) continue;
    check(module.named_parameters(), "parameter");
    check(module.named_buffers(), "buffer");
  }
}

std::vector<std::vector<Tensor>> ReplicaStore::replicas(const std::vector<Tensor>& tensors, std::size_t count,
                                                        const LedgerPtr& ledger) {
  if (!is_current(tensors)) rebuild(tensors);
  std::vector<std::vector<Tensor>> out(count, std::vector<Tensor>(tensors.size()));
  update(tensors, count, ledger);
  for (const Bucket& b : buckets_) {
    std::vector<Tensor> homes;
    std::vector<std::vector<Tensor>> copies(count);
    for (std::size_t m = 0; m < b.members.size(); ++m) {
      homes.push_back(tensors[b.members[m]]);
      copies[0].push_back(alias_of(homes.back()));
      for (std::size_t i = 1; i < count; ++i) copies[i].push_back(alias_of(b.places[i - 1][m]));
    }
    if (b.requires_grad) {
      using Leaves = std::span<const std::vector<Tensor>>;
      record_broadcast(homes, copies, ledger, transport_, is_synchronized() ? Leaves(b.places) : Leaves());
    }
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t m = 0; m < b.members.size(); ++m) out[i][b.members[m]] = std::move(copies[i][m]);
    }
  }
  if (!loose_.empty()) {
    std::vector<Tensor> homes;
    for (std::size_t j : loose_) homes.push_back(tensors[j]);
    const std::vector<Device> devices(devices_.begin(), devices_.begin() + static_cast<std::ptrdiff_t>(count));
    auto copies = broadcast_coalesced(homes, devices, ledger);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t m = 0; m < loose_.size(); ++m) out[i][loose_[m]] = std::move(copies[i][m]);
    }
  }
  return out;
}

bool ReplicaStore::is_current(const std::vector<Tensor>& tensors) const {
  if (tensors.size() != members_.size() || built_with_leaves_ != is_synchronized()) return false;
  for (std::size_t j = 0; j < tensors.size(); ++j) {
    const TensorImpl& t = *tensors[j].impl();
    const Member& m = members_[j];
    if (m.tensor.get() != &t || m.storage != t.storage || m.offset != t.offset || m.shape != t.shape ||
        m.dtype != t.dtype || m.requires_grad != tensors[j].requires_grad()) {
      return false;
    }
  }
  return true;
}

ReplicaStore::Layout ReplicaStore::lay_out(const std::vector<Tensor>& tensors) const {
  Layout layout;
  std::map<std::pair<DType, bool>, std::vector<std::size_t>> kinds;
  for (std::size_t r = tensors.size(); r-- > 0;) {
    const Tensor& t = tensors[r];
    if (!can_move(t)) {
      layout.loose.push_back(r);
    } else {
      kinds[{t.dtype(), !t.requires_grad()}].push_back(r);
    }
  }
  for (const auto& [kind, members] : kinds) {
    std::int64_t bytes = bucket_bytes_;
    for (std::size_t r : members) {
      if (bytes >= bucket_bytes_) {
        layout.buckets.emplace_back();
        bytes = 0;
      }
      layout.buckets.back().push_back(r);
      bytes += static_cast<std::int64_t>(tensors[r].nbytes());
    }
  }
  return layout;
}

void ReplicaStore::rebuild(const std::vector<Tensor>& tensors) {
  if (is_synchronized()) {
    for (const Tensor& t : tensors) {
      if (t.requires_grad() && !can_move(t)) {
        throw ValueError("Synchronous: a parameter is not a contiguous leaf: " + describe(t));
      }
    }
  } else {
    places_.clear();
  }
  built_with_leaves_ = is_synchronized();
  buckets_.clear();
  arenas_.clear();
  std::unordered_set<const TensorImpl*> present;
  for (const Tensor& t : tensors) present.insert(t.impl());
  std::erase_if(places_, [&](const auto& entry) { return !present.contains(entry.first); });
  Layout layout = lay_out(tensors);
  loose_ = std::move(layout.loose);
  std::vector<std::pair<DType, std::int64_t>> sizes;  // of the arenas
  for (std::vector<std::size_t>& members : layout.buckets) {
    const Tensor& first = tensors[members[0]];
    if (sizes.empty() || sizes.back().first != first.dtype()) sizes.emplace_back(first.dtype(), 0);
    Bucket b;
    b.requires_grad = first.requires_grad();
    b.arena = sizes.size() - 1;
    b.begin = sizes.back().second;
    for (std::size_t j : members) sizes.back().second += padded(tensors[j]);
    b.end = sizes.back().second;
    b.members = std::move(members);
    b.places.resize(devices_.size() - 1);
    b.seen.resize(devices_.size() - 1);
    buckets_.push_back(std::move(b));
  }
  for (const auto& [dtype, size] : sizes) {
    arenas_.push_back({zeros({size}, dtype, devices_[0]), std::vector<Tensor>(devices_.size() - 1)});
  }
  for (const Bucket& b : buckets_) {
    std::int64_t offset = b.begin;
    for (std::size_t j : b.members) {
      const Tensor place = slot(arenas_[b.arena].home, tensors[j].sizes(), offset);
      copy_values(place, tensors[j].detach());
      tensors[j].set_data(place);
      offset += padded(tensors[j]);
    }
  }
  members_.clear();
  for (const Tensor& t : tensors) {
    const TensorImpl& i = *t.impl();
    members_.push_back({t.ref(), i.storage, i.offset, i.shape, i.dtype, t.requires_grad()});
  }
}

ReplicaStore::Versions ReplicaStore::versions(const Bucket& b, const std::vector<Tensor>& tensors, std::size_t i) {
  Versions all;
  for (std::size_t j : b.members) all.push_back(tensors[j].version());
  for (const Tensor& t : b.places[i]) all.push_back(t.version());
  return all;
}

std::vector<std::size_t> ReplicaStore::stale(const Bucket& b, const std::vector<Tensor>& tensors, std::size_t count) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    if (versions(b, tensors, i) != b.seen[i]) found.push_back(i);
  }
  return found;
}

void ReplicaStore::make_places(std::size_t i, const std::vector<Tensor>& tensors) {
  for (Arena& a : arenas_) {
    if (!a.copies[i].defined()) a.copies[i] = empty(a.home.sizes(), a.home.dtype(), devices_[i + 1]);
  }
  for (Bucket& b : buckets_) {
    std::int64_t offset = b.begin;
    for (std::size_t m = b.places[i].size(); m < b.members.size(); ++m) {
      const Tensor& home = tensors[b.members[m]];
      std::vector<Tensor>& all = places_[home.impl()];
      all.resize(devices_.size() - 1);
      const Tensor place = slot(arenas_[b.arena].copies[i], home.sizes(), offset);
      if (all[i].defined()) {
        all[i].set_data(place);
      } else {
        all[i] = place;
      }
      if (built_with_leaves_) all[i].requires_grad_(b.requires_grad);
      b.places[i].push_back(all[i]);
      offset += padded(home);
    }
  }
}

void ReplicaStore::update(const std::vector<Tensor>& tensors, std::size_t count, const LedgerPtr& ledger) {
  for (std::size_t i = 0; i + 1 < (built_with_leaves_ ? devices_.size() : count); ++i) make_places(i, tensors);
  // Neighbours that the same devices lack travel together.
  for (std::size_t first = 0, next = 1; first < buckets_.size(); first = next, next = first + 1) {
    const std::vector<std::size_t> targets = stale(buckets_[first], tensors, count);
    while (next < buckets_.size() && buckets_[next].arena == buckets_[first].arena &&
           stale(buckets_[next], tensors, count) == targets) {
      ++next;
    }
    if (targets.empty()) continue;
    const Arena& arena = arenas_[buckets_[first].arena];
    const NoGradGuard no_grad;
    const auto range = [&](const Tensor& flat) {
      return narrow(flat, 0, buckets_[first].begin, buckets_[next - 1].end - buckets_[first].begin);
    };
    const Tensor home = range(arena.home);
    std::vector<Tensor> copies;
    for (std::size_t i : targets) copies.push_back(range(arena.copies[i]));
    {
      std::deque<PhaseScope> scopes;
      for (const Tensor& t : copies) scopes.emplace_back(ledger.get(), Phase::Replicate, t.device()).reads(home);
      transport_->broadcast(home, copies);
    }
    for (std::size_t n = first; n < next; ++n) {
      for (std::size_t i : targets) {
        for (const Tensor& t : buckets_[n].places[i]) bump_version(t);
        buckets_[n].seen[i] = versions(buckets_[n], tensors, i);
      }
    }
  }
}

std::shared_ptr<const void> ReplicaStore::synchronize(const nn::Module& module, const LedgerPtr& ledger) {
  for (const auto& [name, p] : module.named_parameters()) {
    if (!can_move(p)) {
      throw ValueError(fmt::format("Synchronous: parameter '{}' is not a contiguous leaf: {}", name, describe(p)));
    }
  }
  if (std::shared_ptr<const void> held = synchronized_.lock()) return held;
  const auto held = std::make_shared<const int>(0);
  synchronized_ = held;
  refresh(tensors_of(module), ledger);
  for (const Tensor& p : module.parameters()) {
    const Tensor grad = p.grad();
    if (!grad.defined()) continue;
    p.set_grad(grad.detach().clone());
    for (std::size_t i = 1; i < devices_.size(); ++i) on_device(p, i).set_grad(grad.detach().to(devices_[i]));
  }
  return held;
}

Tensor ReplicaStore::on_device(const Tensor& tensor, std::size_t i) const {
  return i == 0 ? tensor : places_.at(tensor.impl())[i - 1];
}

void ReplicaStore::refresh(const std::vector<Tensor>& tensors, const LedgerPtr& ledger) {
  if (!is_current(tensors)) rebuild(tensors);
  update(tensors, devices_.size(), ledger);
}

void ReplicaStore::mark_current(const std::vector<Tensor>& tensors) {
  for (Bucket& b : buckets_) {
    for (std::size_t i = 0; i + 1 < devices_.size(); ++i) b.seen[i] = versions(b, tensors, i);
  }
}

std::vector<BucketPlan> ReplicaStore::explain(const std::vector<Tensor>& tensors, std::size_t count) const {
  const bool current = is_current(tensors);
  std::vector<BucketPlan> plans;
  for (const std::vector<std::size_t>& members : lay_out(tensors).buckets) {
    BucketPlan plan{members.size(), 0, tensors[members[0]].dtype(), tensors[members[0]].requires_grad(), 0};
    std::int64_t elements = 0;
    for (std::size_t j : members) {
      plan.elements += tensors[j].numel();
      elements += padded(tensors[j]);
    }
    const auto devices = current ? stale(buckets_[plans.size()], tensors, count).size() : count - 1;
    plan.bytes_to_copy = static_cast<std::int64_t>(devices * size_of(plan.dtype)) * elements;
    plans.push_back(plan);
  }
  return plans;
}

}  // namespace tandem::parallel
