#include "tree_comm.h"

#include <fmt/format.h>

#include "../engine/ops.h"

namespace tandem::parallel {

ScatterPlan plan_scatter(const NamedTensors& named, const std::vector<Device>& devices, std::int64_t dim,
                         const Split& split) {
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
  ScatterPlan plan;
  plan.rows = first ? split(first->second.size(dim), std::ssize(devices)) : std::vector<std::int64_t>{0};
  plan.devices.assign(devices.begin(), devices.begin() + std::ssize(plan.rows));
  return plan;
}

std::vector<std::vector<Tensor>> cut(const NamedTensors& named, const ScatterPlan& plan, std::int64_t dim,
                                     const LedgerPtr& ledger) {
  std::vector<std::vector<Tensor>> parts;
  for (const auto& [path, t] : named) {
    if (!t.defined()) {
      parts.emplace_back(plan.devices.size());
    } else if (t.dim() == 0) {
      auto& copies = parts.emplace_back();
      for (Device d : plan.devices) copies.push_back(to(t, d));
    } else {
      parts.push_back(scatter(t, plan.devices, plan.rows, dim, ledger));
    }
  }
  return parts;
}

namespace {

void check_presence(const std::vector<Tensor>& tensors, const std::string& path) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].defined() != tensors[0].defined()) {
      throw ValueError(fmt::format("gather: {} is {} in replica 0, but {} in replica {}", path, describe(tensors[0]),
                                   describe(tensors[i]), i));
    }
  }
}

}  // namespace

Tensor gather_at(const std::vector<Tensor>& tensors, const GatherPlan& plan, const std::string& path) {
  check_presence(tensors, path);
  if (!tensors[0].defined()) return {};
  try {
    return gather(tensors, plan.device, plan.dim, plan.ledger);
  } catch (const ShapeError& e) {
    throw ShapeError(path + ": " + e.what());
  }
}

Tensor sum_at(const std::vector<Tensor>& tensors, const std::vector<double>& weights, const GatherPlan& plan,
              const std::string& path) {
  check_presence(tensors, path);
  if (!tensors[0].defined()) return {};
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!weights.empty() && !is_floating(tensors[i].dtype())) {
      throw DTypeError(
          fmt::format("gather: {} is {}, wanted a floating tensor for a mean", path, describe(tensors[i])));
    }
    parts.push_back(weights.empty() || weights[i] == 1 ? tensors[i] : mul(tensors[i], weights[i]));
  }
  try {
    PhaseScope scope(plan.ledger.get(), Phase::Gather, plan.device);
    for (const Tensor& t : parts) scope.reads(t);
    return reduce_add(parts, plan.device);
  } catch (const ShapeError& e) {
    throw ShapeError(path + ": " + e.what());
  }
}

std::vector<double> row_weights(const GatherPlan& plan, std::size_t count) {
  std::int64_t total = 0;
  for (const std::int64_t r : plan.rows) total += r;
  std::vector<double> weights(count, 1 / static_cast<double>(count));
  for (std::size_t i = 0; i < count && total > 0; ++i) {
    weights[i] = static_cast<double>(plan.rows[i]) / static_cast<double>(total);
  }
  return weights;
}

}  // namespace tandem::parallel
