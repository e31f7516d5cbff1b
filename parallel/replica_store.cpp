#include "replica_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "../engine/ops_internal.h"

namespace tandem::parallel {
namespace {

constexpr std::int64_t kBucketBytes = std::int64_t{1} << 20;
constexpr std::int64_t kAlignment = 64;

std::int64_t padded(const Tensor& t) {
  const std::int64_t line = kAlignment / static_cast<std::int64_t>(size_of(t.dtype()));
  return (std::max<std::int64_t>(t.numel(), 1) + line - 1) / line * line;
}

/// A tensor at an offset of a flat buffer, of which it uses its part alone.
Tensor slot(const Tensor& flat, const Shape& shape, std::int64_t offset) {
  Tensor t = alias_of(view_of(flat, shape, contiguous_strides(shape), offset));
  t.impl()->exclusive = true;
  return t;
}

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
  for (Bucket& b : buckets_) update(b, tensors, count, ledger);
  for (const Bucket& b : buckets_) {
    std::vector<Tensor> homes;
    std::vector<std::vector<Tensor>> copies(count);
    std::int64_t offset = 0;
    for (std::size_t j : b.members) {
      homes.push_back(tensors[j]);
      copies[0].push_back(alias_of(tensors[j]));
      for (std::size_t i = 1; i < count; ++i) copies[i].push_back(slot(b.copies[i - 1], tensors[j].sizes(), offset));
      offset += padded(tensors[j]);
    }
    if (b.requires_grad) record_broadcast(homes, copies, ledger, transport_);
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
  if (tensors.size() != members_.size()) return false;
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

void ReplicaStore::rebuild(const std::vector<Tensor>& tensors) {
  buckets_.clear();
  loose_.clear();
  members_.clear();
  std::vector<std::size_t> open;
  std::int64_t bytes = 0;
  const auto close = [&] {
    if (!open.empty()) make_bucket(tensors, open);
    open.clear();
    bytes = 0;
  };
  for (std::size_t r = tensors.size(); r-- > 0;) {
    const Tensor& t = tensors[r];
    if (!t.is_leaf() || t.impl()->base || !t.is_contiguous()) {
      loose_.push_back(r);
      continue;
    }
    const bool fits = open.empty() || (tensors[open[0]].dtype() == t.dtype() &&
                                       tensors[open[0]].requires_grad() == t.requires_grad() && bytes < kBucketBytes);
    if (!fits) close();
    open.push_back(r);
    bytes += static_cast<std::int64_t>(t.nbytes());
  }
  close();
  for (const Tensor& t : tensors) {
    const TensorImpl& i = *t.impl();
    members_.push_back({t.ref(), i.storage, i.offset, i.shape, i.dtype, t.requires_grad()});
  }
}

void ReplicaStore::make_bucket(const std::vector<Tensor>& tensors, const std::vector<std::size_t>& members) {
  Bucket b;
  b.members = members;
  b.requires_grad = tensors[members[0]].requires_grad();
  std::int64_t total = 0;
  for (std::size_t j : members) total += padded(tensors[j]);
  b.home = zeros({total}, tensors[members[0]].dtype(), devices_[0]);
  std::int64_t offset = 0;
  for (std::size_t j : members) {
    const Tensor place = slot(b.home, tensors[j].sizes(), offset);
    place.impl()->version = make_ref<Version>();
    copy_values(place, tensors[j].detach());
    tensors[j].set_data(place);
    offset += padded(tensors[j]);
  }
  b.copies.resize(devices_.size() - 1);
  b.seen.resize(devices_.size() - 1);
  buckets_.push_back(std::move(b));
}

void ReplicaStore::update(Bucket& b, const std::vector<Tensor>& tensors, std::size_t count, const LedgerPtr& ledger) {
  std::vector<std::uint32_t> versions;
  for (std::size_t j : b.members) versions.push_back(tensors[j].version());
  std::vector<std::size_t> stale;
  std::vector<Tensor> targets;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    Tensor& copy = b.copies[i];
    if (!copy.defined()) copy = empty(b.home.sizes(), b.home.dtype(), devices_[i + 1]);
    versions.push_back(copy.version());
    if (versions != b.seen[i]) {
      stale.push_back(i);
      targets.push_back(copy);
    }
    versions.pop_back();
  }
  if (stale.empty()) return;
  {
    std::deque<PhaseScope> scopes;
    const auto bytes = static_cast<std::int64_t>(b.home.nbytes());
    for (const Tensor& t : targets) scopes.emplace_back(ledger.get(), Phase::Replicate, t.device(), bytes);
    transport_->broadcast(b.home, targets);
  }
  for (std::size_t i : stale) {
    bump_version(b.copies[i]);
    b.seen[i] = versions;
    b.seen[i].push_back(b.copies[i].version());
  }
}

}  // namespace tandem::parallel
