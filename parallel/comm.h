#pragma once
// Tensors between devices: the parts of DataParallel that move data. All are differentiable, any number of times:
// scatter and gather are each other's backward pass, broadcast and reduce_add likewise.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "../engine/tensor.h"
#include "ledger.h"
#include "transport.h"

namespace tandem::parallel {

using LedgerPtr = std::shared_ptr<Ledger>;

/// How n elements become chunks for k devices.
class Split {
 public:
  /// As PyTorch: ceil(n / k) each, the last one what is left. So there may be fewer than k: 9 for 4 are 3, 3, 3.
  static Split ceil() { return Split(Rule::Ceil); }
  /// Sizes that differ by 1 at most, the larger ones first; fewer than k only if n is less: 9 for 4 are 3, 2, 2, 2.
  static Split balanced() { return Split(Rule::Balanced); }
  /// These sizes, for the first devices. Each at least 1.
  static Split sizes(std::vector<std::int64_t> sizes);

  /// One chunk of 0 for n = 0, whatever the rule. ValueError when given sizes do not add up to n or are more than k.
  std::vector<std::int64_t> operator()(std::int64_t n, std::int64_t k) const;

 private:
  enum class Rule { Ceil, Balanced, Given };
  explicit Split(Rule rule) : rule_(rule) {}

  Rule rule_;
  std::vector<std::int64_t> sizes_;
};

/// x cut along `dim` into chunks of the given sizes, the i-th on devices[i]. A chunk on x's own device is a view of x,
/// others are copies. ValueError when the numbers differ or the sizes do not add up.
std::vector<Tensor> scatter(const Tensor& x, const std::vector<Device>& devices, const std::vector<std::int64_t>& sizes,
                            std::int64_t dim = 0, const LedgerPtr& ledger = {});
inline std::vector<Tensor> scatter(const Tensor& x, const std::vector<Device>& devices,
                                   std::initializer_list<std::int64_t> sizes, std::int64_t dim = 0,
                                   const LedgerPtr& ledger = {}) {
  return scatter(x, devices, std::vector(sizes), dim, ledger);
}
/// The same with Split::ceil()(x.size(dim), devices.size()), on the first devices.
std::vector<Tensor> scatter(const Tensor& x, const std::vector<Device>& devices, std::int64_t dim = 0,
                            const LedgerPtr& ledger = {});

/// The tensors, from any devices, one after another along `dim` on `device`. 0-dim tensors give a vector with one
/// element each. ShapeError when they do not fit, naming the first that does not.
Tensor gather(std::span<const Tensor> tensors, Device device, std::int64_t dim = 0, const LedgerPtr& ledger = {});

/// result[i][j] is tensors[j] on devices[i]; on its own device it is the tensor itself, sharing memory. Those of one
/// dtype travel in one copy per device, and share a buffer there. Gradients are summed over the devices in their order,
/// and stay undefined where no device has one.
std::vector<std::vector<Tensor>> broadcast_coalesced(std::span<const Tensor> tensors,
                                                     const std::vector<Device>& devices, const LedgerPtr& ledger = {});
std::vector<Tensor> broadcast(const Tensor& x, const std::vector<Device>& devices);

/// result[j] is the sum over i of per_device[i][j], in the order of i, on `device`. Undefined tensors are left out; the
/// sum of none is undefined. ShapeError when shapes differ. The results of one dtype lie in one buffer.
std::vector<Tensor> reduce_add_coalesced(std::span<const std::vector<Tensor>> per_device, Device device,
                                         const LedgerPtr& ledger = {},
                                         const TransportPtr& transport = copy_transport());
Tensor reduce_add(std::span<const Tensor> tensors, Device device);

/// The same on every one of `devices`, different ones: result[i][j] is the sum over all per_device[.][j] on devices[i],
/// with the same bits on each.
std::vector<std::vector<Tensor>> all_reduce_coalesced(std::span<const std::vector<Tensor>> per_device,
                                                      const std::vector<Device>& devices, const LedgerPtr& ledger = {},
                                                      const TransportPtr& transport = copy_transport());

/// Makes copies[i][j] the outputs of a broadcast of tensors[j] on the tape, after their values have been put there.
/// Tensors that need no gradient are left off. Gradients are summed by `transport`; where there are leaves, each
/// leaves[d][j] on another device gets the sum as well.
void record_broadcast(std::span<const Tensor> tensors, std::vector<std::vector<Tensor>>& copies,
                      const LedgerPtr& ledger, const TransportPtr& transport,
                      std::span<const std::vector<Tensor>> leaves = {});

}  // namespace tandem::parallel
