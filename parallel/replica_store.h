#pragma once
// Long-lived copies of a module's tensors on several devices. Internal.
//
// The first device's parameters are moved into flat buffers, and each other device has a flat buffer of the same
// layout, so that bringing a device up to date is one copy per bucket, and none for a bucket that nobody has changed. A
// bucket is also what the tape sees: one broadcast node, whose backward pass reduces the gradients of its parameters
// into one flat buffer as soon as the last of them is there. Buckets are filled in reverse order of registration, which
// is about the order in which backward finishes with them.

#include <cstdint>
#include <vector>

#include "../nn/module.h"
#include "comm.h"

namespace tandem::parallel {

class ReplicaStore {
 public:
  ReplicaStore(std::vector<Device> devices, TransportPtr transport)
      : devices_(std::move(devices)), transport_(std::move(transport)) {}

  /// The module's tensors on the first `count` devices: result[i][j] stands for tensors(module)[j] on device i. Those
  /// of the first device share memory with the module. Recorded on the tape if grad mode is on.
  std::vector<std::vector<Tensor>> replicas(const std::vector<Tensor>& tensors, std::size_t count,
                                            const LedgerPtr& ledger);

 private:
  struct Bucket {
    std::vector<std::size_t> members;              ///< numbers of tensors
    Tensor home;                                   ///< flat, on the first device
    std::vector<Tensor> copies;                    ///< flat, on the others; undefined until used
    std::vector<std::vector<std::uint32_t>> seen;  ///< per copy: the members' versions when it was made
    bool requires_grad = false;
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

  bool is_current(const std::vector<Tensor>& tensors) const;
  void rebuild(const std::vector<Tensor>& tensors);
  void make_bucket(const std::vector<Tensor>& tensors, const std::vector<std::size_t>& members);
  /// Brings the bucket's copies on the first `count` devices up to date.
  void update(Bucket& bucket, const std::vector<Tensor>& tensors, std::size_t count, const LedgerPtr& ledger);

  std::vector<Device> devices_;
  TransportPtr transport_;
  std::vector<Member> members_;
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
