#pragma once
// scatter and gather for trees: tuples, vectors, maps, optionals and structs with listed fields, see engine/tree.h.

#include <algorithm>
#include <concepts>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../engine/error.h"
#include "../engine/tree.h"
#include "comm.h"

namespace tandem::parallel {

/// How the tensors of one call are cut: the devices that get a chunk, and how much of the batch each of them gets,
/// which all tensors share. A call without a batch, and one of an empty batch, has one chunk.
struct ScatterPlan {
  std::vector<Device> devices;
  std::vector<std::int64_t> rows;
};

/// Tensors with their paths, in the order of a walk.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// The common rule for trees. Tensors of one or more dims are cut along `dim` and must agree in size there (else
/// ShapeError naming both); they alone decide how many chunks there are. 0-dim and undefined tensors do not.
ScatterPlan plan_scatter(const NamedTensors& named, const std::vector<Device>& devices, std::int64_t dim,
                         const Split& split);
/// For each tensor its part per device: chunks of those that are cut; 0-dim ones go to every device, differentiably;
/// undefined ones stay undefined.
std::vector<std::vector<Tensor>> cut(const NamedTensors& named, const ScatterPlan& plan, std::int64_t dim,
                                     const LedgerPtr& ledger);

template <class T>
NamedTensors named_tensors(const T& tree, const Path& path = Path()) {
  NamedTensors named;
  for_each_tensor(
      tree, [&](const Tensor& t, const Path& at) { named.emplace_back(at.str(), t); }, path);
  return named;
}

/// One tree per chunk, and how they were cut. Leaves that are not tensors are copied to each.
template <class T>
std::pair<std::vector<T>, ScatterPlan> scatter_tree(const T& tree, const std::vector<Device>& devices,
                                                    std::int64_t dim = 0, const Split& split = Split::ceil(),
                                                    const LedgerPtr& ledger = {}, const Path& path = Path()) {
  const NamedTensors named = named_tensors(tree, path);
  ScatterPlan plan = plan_scatter(named, devices, dim, split);
  const auto parts = cut(named, plan, dim, ledger);
  std::vector<T> trees;
  for (std::size_t i = 0; i < plan.devices.size(); ++i) {
    std::size_t j = 0;
    trees.push_back(map_tensors(tree, [&](const Tensor&) { return parts[j++][i]; }));
  }
  return {std::move(trees), std::move(plan)};
}

// Results that are not to be concatenated: forward returns them wrapped in one of these.

/// That of the first replica. Of any type.
template <class T>
struct First {
  T value;
  TANDEM_TREE(First, value)
};
/// All of them, in the order of the replicas; forward gives its own, {{value}}. Of any type; tensors stay on their
/// devices.
template <class T>
struct PerReplica {
  std::vector<T> values;
  TANDEM_TREE(PerReplica, values)
};
/// Their sum: tensors of one shape, or numbers.
template <class T = Tensor>
struct Sum {
  T value;
  TANDEM_TREE(Sum, value)
};
/// Their mean, weighted by the rows of the batch that each replica had: what a mean over the whole batch is. Floating
/// tensors of one shape, or floating numbers.
template <class T = Tensor>
struct WeightedMean {
  T value;
  TANDEM_TREE(WeightedMean, value)
};

/// How results are put together.
struct GatherPlan {
  Device device{};
  std::int64_t dim = 0;
  std::vector<std::int64_t> rows;  ///< of each replica, for WeightedMean; all alike if empty
  LedgerPtr ledger{};
};

/// The tensors at one place of all replicas' results, as one. `path` opens the message where they do not fit.
Tensor gather_at(const std::vector<Tensor>& tensors, const GatherPlan& plan, const std::string& path);
/// Their sum on the plan's device, each times its weight; without weights as they are.
Tensor sum_at(const std::vector<Tensor>& tensors, const std::vector<double>& weights, const GatherPlan& plan,
              const std::string& path);
/// The share of each of `count` replicas in the batch.
std::vector<double> row_weights(const GatherPlan& plan, std::size_t count);

namespace detail {

/// Puts the results at one place together in those of replica 0.
struct Gatherer {
  const GatherPlan& plan;

  void operator()(Row<Tensor> row, const Path& at) const { *row[0] = gather_at(tensors_of(row), plan, at.str()); }

  template <class T>
  void operator()(Row<First<T>>, const Path&) const {}

  template <class T>
  void operator()(Row<PerReplica<T>> row, const Path&) const {
    for (std::size_t i = 1; i < row.size(); ++i) {
      std::move(row[i]->values.begin(), row[i]->values.end(), std::back_inserter(row[0]->values));
    }
  }

  template <class T>
  void operator()(Row<Sum<T>> row, const Path& at) const {
    add(row, {}, at);
  }
  template <class T>
  void operator()(Row<WeightedMean<T>> row, const Path& at) const {
    static_assert(!std::integral<T>, "WeightedMean is of floating numbers or tensors");
    add(row, row_weights(plan, row.size()), at);
  }

 private:
  static const Tensor& tensor_in(const Tensor& t) { return t; }
  template <class T>
  static const T& tensor_in(const Sum<T>& s) {
    return s.value;
  }
  template <class T>
  static const T& tensor_in(const WeightedMean<T>& m) {
    return m.value;
  }
  template <class T>
  static std::vector<Tensor> tensors_of(Row<T> row) {
    std::vector<Tensor> tensors;
    for (const T* t : row) tensors.push_back(tensor_in(*t));
    return tensors;
  }

  template <class T>
  void add(Row<T> row, const std::vector<double>& weights, const Path& at) const {
    auto& total = row[0]->value;
    using Value = std::remove_reference_t<decltype(total)>;
    if constexpr (std::derived_from<Value, Tensor>) {
      total = sum_at(tensors_of(row), weights, plan, at.str());
    } else {
      static_assert(std::is_arithmetic_v<Value>, "Sum and WeightedMean are of tensors or numbers");
      Value sum{};
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (weights.empty()) {
          sum += row[i]->value;
        } else {
          sum += static_cast<Value>(weights[i]) * row[i]->value;
        }
      }
      total = sum;
    }
  }
};

}  // namespace detail

/// One tree from one per replica: tensors are concatenated on the plan's device, or what First, PerReplica, Sum and
/// WeightedMean say; sizes, keys and presence must agree (ValueError with the path). A tree with other leaves does not
/// compile.
template <class T>
T gather_tree(std::vector<T>& trees, const GatherPlan& plan) {
  static_assert(
      is_tree<T>,
      "forward() of a DataParallel module must return tensors, or tuples, vectors, maps, optionals or "
      "TANDEM_TREE structs of tensors; wrap other values in parallel::First, PerReplica, Sum or WeightedMean");
  std::vector<T*> row;
  for (T& t : trees) row.push_back(&t);
  try {
    zip_trees(
        Row<T>(row), detail::Gatherer{plan},
        []<class Leaf>(const Row<Leaf>&, const Path&) {
          static_assert(!sizeof(Leaf),
                        "this type, inside the result of forward(), cannot be gathered: it is no tensor; wrap it in "
                        "parallel::First, PerReplica, Sum or WeightedMean");
        },
        Path("out"));
  } catch (const TreeMismatch& e) {
    throw ValueError("gather: " + e.path + " has " + e.first + " in replica 0, but " + e.other + " in replica " +
                     std::to_string(e.index));
  }
  return std::move(trees[0]);
}

}  // namespace tandem::parallel
