#pragma once
// When devices do their work.

#include <cstdint>
#include <memory>

#include "device.h"

namespace tandem {

namespace kernels::cuda {
class Mark;
}

/// Nanoseconds of the steady clock.
std::int64_t now_ns();

/// A point in a device's work: the present on a CPU device; on a CUDA device the end of what it has been given so far.
class TimeMark {
 public:
  /// Where the device has failed, the present.
  explicit TimeMark(Device device) noexcept;
  explicit TimeMark(std::int64_t ns) : ns_(ns) {}
  explicit TimeMark(kernels::cuda::Mark mark);

  /// Whether the device has got there.
  bool passed() const noexcept;
  /// When, in nanoseconds of the steady clock. Waits until the device has got there.
  std::int64_t time_ns() const noexcept;

 private:
  std::int64_t ns_;
  std::shared_ptr<const kernels::cuda::Mark> mark_;
};

}  // namespace tandem
