#pragma once
// Long-lived copies of a module's tensors on several devices. Internal.
//
// The first device's parameters and buffers are moved into one flat arena per dtype, and each other device has an arena
// of the same layout, so that bringing a device up to date is one copy per dtype, and none of what nobody has changed.
// An arena consists of buckets, which are what the tape sees: one broadcast node, whose backward pass reduces the
// gradients of its parameters into one flat buffer as soon as the last of them is there. Buckets are filled in reverse
// order of registration, which is about the order in which backward finishes with them.

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../nn/module.h"
#include "comm.h"

namespace tandem::parallel {

/// What a bucket holds, and how many bytes a call would copy for it.
struct BucketPlan {
  std::size_t tensors = 0;
  std::int64_t elements = 0;
  DType dtype = DType::Float32;
  bool requires_grad = false;
  std::int64_t bytes_to_copy = 0;
};

class ReplicaStore {
 public:
  ReplicaStore(std::vector<Device> devices, TransportPtr transport, std::int64_t bucket_bytes)
      : devices_(std::move(devices)), transport_(std::move(transport)), bucket_bytes_(bucket_bytes) {}

  /// The module's tensors on the first `count` devices: result[i][j] stands for tensors(module)[j] on device i. Those
  /// of the first device share memory with the module. Recorded on the tape if grad mode is on.
  std::vector<std::vector<Tensor>> replicas(const std::vector<Tensor>& tensors, std::size_t count,
                                            const LedgerPtr& ledger);
  /// While the result lives, the copies of parameters are leaves, and each gets the sum of the gradients that the
  /// module's own parameter gets: optimizers on all devices that make the same change to each keep them equal, and
  /// nothing has to be copied. Leaves stay the same as long as the module has their parameter. Gradients that are there
  /// are copied. ValueError, here and later, for a parameter that cannot be moved.
  std::shared_ptr<const void> synchronize(const nn::Module& module, const LedgerPtr& ledger);
  bool is_synchronized() const { return !synchronized_.expired(); }
  /// `tensor`, one of the module's, on device number i. Once synchronised.
  Tensor on_device(const Tensor& tensor, std::size_t i) const;
  /// Brings all devices up to date.
  void refresh(const std::vector<Tensor>& tensors, const LedgerPtr& ledger);
  /// Says that parameters and copies have undergone the same change since.
  void mark_current(const std::vector<Tensor>& tensors);
  const std::vector<Device>& devices() const { return devices_; }
  /// The buckets that replicas() would work with. Changes nothing.
  std::vector<BucketPlan> explain(const std::vector<Tensor>& tensors, std::size_t count) const;

 private:
  using Versions = std::vector<std::uint32_t>;
  struct Arena {
    Tensor home;                 ///< flat, on the first device
    std::vector<Tensor> copies;  ///< flat, on the others; undefined until used
  };
  struct Bucket {
    std::vector<std::size_t> members;  ///< numbers of tensors
    bool requires_grad = false;
    std::size_t arena = 0;
    std::int64_t begin = 0, end = 0;          ///< elements of the arena
    std::vector<std::vector<Tensor>> places;  ///< per other device: the members there, as in places_
    std::vector<Versions> seen;               ///< per other device: versions() when it was brought up to date
  };
  /// What the buckets were made for, to notice that a module has changed.
  struct Member {
    Ref<TensorImpl> tensor;
    Ref<Storage> storage;
    std::int64_t offset = 0;
    Shape shape;
    DType dtype = DType::Float32;
    bool requires_grad = false;
  };
  struct Layout {
    std::vector<std::vector<std::size_t>> buckets;  ///< by dtype
    std::vector<std::size_t> loose;
  };

  bool is_current(const std::vector<Tensor>& tensors) const;
  Layout lay_out(const std::vector<Tensor>& tensors) const;
  void rebuild(const std::vector<Tensor>& tensors);
  /// Those of a bucket's members, at home and on device number i + 1.
  static Versions versions(const Bucket& bucket, const std::vector<Tensor>& tensors, std::size_t i);
  /// The other devices, of the first `count`, whose copy of the bucket is out of date.
  static std::vector<std::size_t> stale(const Bucket& bucket, const std::vector<Tensor>& tensors, std::size_t count);
  void make_places(std::size_t i, const std::vector<Tensor>& tensors);
  /// Brings the first `count` devices up to date.
  void update(const std::vector<Tensor>& tensors, std::size_t count, const LedgerPtr& ledger);

  std::vector<Device> devices_;
  TransportPtr transport_;
  std::int64_t bucket_bytes_;
  std::weak_ptr<const void> synchronized_;
  bool built_with_leaves_ = false;
  std::vector<Member> members_;
  std::unordered_map<const TensorImpl*, std::vector<Tensor>> places_;  ///< of each member that is in a bucket
  std::vector<Arena> arenas_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> loose_;  ///< tensors that cannot be moved: not leaves, views, or strided
};

/// Every parameter and buffer of a module, each identity once, without names.
std::vector<Tensor> tensors_of(const nn::Module& module);

/// Makes a copy of a module a replica: tensors[j] becomes copies[j].
void rebind(nn::Module& replica, const std::vector<Tensor>& tensors, const std::vector<Tensor>& copies);

/// DeviceError naming the first parameter or buffer that is not on `home`.
void check_home(const nn::Module& module, Device home);

}  // namespace tandem::parallel
