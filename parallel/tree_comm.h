#pragma once
// scatter and gather for trees: tuples, vectors, maps, optionals and structs with listed fields, see engine/tree.h.

#include <optional>
#include <string>
#include <vector>

#include "../engine/error.h"
#include "../engine/tree.h"
#include "comm.h"

namespace tandem::parallel {

/// How the tensors of one call are cut: the chunk sizes, which every tensor shares, and for each tensor, in the order
/// of a walk, its chunk per replica.
struct ScatterPlan {
  std::vector<Device> devices;
  std::vector<std::vector<Tensor>> chunks;
};

/// The common rule for trees. `named` lists every tensor with its path. Tensors of one or more dims are cut along `dim`
/// and must agree in size there (else ShapeError naming both); they alone decide how many chunks there are, at most one
/// per device, and one if there is none. 0-dim tensors go to every device, differentiably. Undefined ones stay
/// undefined.
ScatterPlan plan_scatter(const std::vector<std::pair<std::string, Tensor>>& named, const std::vector<Device>& devices,
                         std::int64_t dim, const LedgerPtr& ledger);

/// One tree per chunk. Leaves that are not tensors are copied to each.
template <class T>
std::vector<T> scatter_tree(const T& tree, const std::vector<Device>& devices, std::int64_t dim = 0,
                            std::vector<Device>* used = nullptr, const LedgerPtr& ledger = {},
                            const Path& path = Path()) {
  std::vector<std::pair<std::string, Tensor>> named;
  for_each_tensor(
      tree, [&](const Tensor& t, const Path& at) { named.emplace_back(at.str(), t); }, path);
  ScatterPlan plan = plan_scatter(named, devices, dim, ledger);
  std::vector<T> trees;
  for (std::size_t i = 0; i < plan.devices.size(); ++i) {
    std::size_t j = 0;
    trees.push_back(map_tensors(tree, [&](const Tensor&) { return plan.chunks[j++][i]; }));
  }
  if (used) *used = std::move(plan.devices);
  return trees;
}

/// The tensors at one place of all replicas' results, as one. `path` opens the message where they do not fit.
Tensor gather_at(const std::vector<Tensor>& tensors, Device device, std::int64_t dim, const std::string& path,
                 const LedgerPtr& ledger);

/// One tree from one per replica: tensors are gathered on `device`; sizes, keys and presence must agree (ValueError
/// with the path). A tree with other leaves than tensors does not compile.
template <class T>
T gather_tree(std::vector<T>& trees, Device device, std::int64_t dim = 0, const LedgerPtr& ledger = {}) {
  static_assert(is_tree<T>,
                "forward() of a DataParallel module must return tensors, or tuples, vectors, maps, optionals or "
                "TANDEM_TREE structs of tensors: nothing else can be gathered");
  std::vector<T*> row;
  for (T& t : trees) row.push_back(&t);
  zip_trees(
      Row<T>(row),
      [&](Row<Tensor> tensors, const Path& at) {
        std::vector<Tensor> parts;
        for (const Tensor* t : tensors) parts.push_back(*t);
        *tensors[0] = gather_at(parts, device, dim, at.str(), ledger);
      },
      []<class Leaf>(const Row<Leaf>&, const Path&) {
        static_assert(!sizeof(Leaf), "this type, inside the result of forward(), cannot be gathered: it is no tensor");
      },
      Path("out"));
  return std::move(trees[0]);
}

}  // namespace tandem::parallel
