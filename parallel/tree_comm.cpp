#include "tree_comm.h"

#include <fmt/format.h>

#include "../engine/ops.h"

namespace tandem::parallel {

ScatterPlan plan_scatter(const std::vector<std::pair<std::string, Tensor>>& named, const std::vector<Device>& devices,
                         std::int64_t dim, const LedgerPtr& ledger) {
  const std::pair<std::string, Tensor>* first = nullptr;
  for (const auto& entry : named) {
    const auto& [path, t] = entry;
    if (!t.defined() || t.dim() == 0) continue;
    if (dim < -t.dim() || dim >= t.dim()) {
      throw IndexError(
          fmt::format("scatter: {} is {}, which has no dimension {} to be cut along", path, describe(t), dim));
    }
    if (first && t.size(dim) != first->second.size(dim)) {
      throw ShapeError(fmt::format(
          "scatter: the tensors of one call must have one batch size, but along dimension {} {} has "
          "{} ({}) and {} has {} ({})",
          dim, first->first, first->second.size(dim), describe(first->second), path, t.size(dim), describe(t)));
    }
    if (!first) first = &entry;
  }
  const auto k = static_cast<std::int64_t>(devices.size());
  const std::vector<std::int64_t> sizes =
      first ? chunk_sizes(first->second.size(dim), k) : std::vector<std::int64_t>{0};
  ScatterPlan plan;
  plan.devices.assign(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(sizes.size()));
  for (const auto& [path, t] : named) {
    if (!t.defined()) {
      plan.chunks.emplace_back(sizes.size());
    } else if (t.dim() == 0) {
      auto& copies = plan.chunks.emplace_back();
      for (Device d : plan.devices) copies.push_back(to(t, d));
    } else {
      plan.chunks.push_back(scatter(t, plan.devices, sizes, dim, ledger));
    }
  }
  return plan;
}

Tensor gather_at(const std::vector<Tensor>& tensors, Device device, std::int64_t dim, const std::string& path,
                 const LedgerPtr& ledger) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].defined() != tensors[0].defined()) {
      throw ValueError(fmt::format("gather: {} is {} in replica 0, but {} in replica {}", path, describe(tensors[0]),
                                   describe(tensors[i]), i));
    }
  }
  if (!tensors[0].defined()) return {};
  try {
    return gather(tensors, device, dim, ledger);
  } catch (const ShapeError& e) {
    throw ShapeError(path + ": " + e.what());
  }
}

}  // namespace tandem::parallel
