#pragma once
// How tensors travel between the devices of a DataParallel.

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../engine/autograd.h"
#include "../engine/tensor.h"
#include "../engine/time_mark.h"

namespace tandem::parallel {

/// Queues its work on the devices, in the order of what they were given before and later, unless it says otherwise.
/// Neither the tape nor versions learn of it. Thread-safe.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  /// "copies", "host" or "NCCL".
  virtual const char* name() const = 0;
  /// Its name and, where that is not what one would expect, why it was chosen.
  virtual std::string description() const { return name(); }
  /// Each of `to` becomes `from`, which has its sizes and dtype; contiguous, on different devices.
  virtual void broadcast(const Tensor& from, std::span<const Tensor> to) const = 0;

  /// sum = parts[0] + parts[1] + ...; contiguous, of one size and dtype. At least one part, on any devices.
  struct Reduction {
    Tensor sum;
    std::vector<Tensor> parts;
  };
  void reduce(std::span<const Reduction> reductions) const { start_reduce(reductions, false).finish(); }
  /// As reduce(), and on other devices too, with the same bits. The sums of a dtype lie in one buffers[b][0], flat;
  /// each buffers[b][i] is of its size, on another device, and gets them at the same places.
  void all_reduce(std::span<const Reduction> reductions, std::span<const std::vector<Tensor>> buffers) const {
    start_all_reduce(reductions, buffers, false).finish();
  }

  /// Work that has begun.
  struct Started {
    /// Empty for work in the devices' order. Else the work runs beside what they are given from now on, and until this
    /// has been called nobody looks at the sums and all of them are kept. Keeps the parts itself.
    Finish finish{};
    /// When each device of the transport began and ended its part; empty for work in the devices' order.
    std::vector<std::pair<TimeMark, TimeMark>> times{};
  };
  /// Begin. `timed` asks for times.
  virtual Started start_reduce(std::span<const Reduction> reductions, bool timed) const = 0;
  virtual Started start_all_reduce(std::span<const Reduction> reductions, std::span<const std::vector<Tensor>> buffers,
                                   bool timed) const;
};

using TransportPtr = std::shared_ptr<const Transport>;

/// Copies and adds: between any devices, and sums in the order of the parts.
TransportPtr copy_transport();
/// Copies and adds as well, but every byte goes through memory of the host.
TransportPtr host_transport();

enum class TransportKind {
  Auto,    ///< NCCL where it can be; through the host where two of the GPUs do not reach each other; else copies
  Copies,  ///< copy_transport()
  Host,    ///< host_transport()
  NCCL,    ///< for work that involves all devices, in their order; copies do the rest. Sums are the same on every run,
           ///< but NCCL chooses their order
};
/// DeviceError for NCCL where the build has none or the devices are not different GPUs.
TransportPtr make_transport(const std::vector<Device>& devices, TransportKind kind = TransportKind::Auto);

}  // namespace tandem::parallel
