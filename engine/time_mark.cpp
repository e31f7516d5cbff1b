#include "time_mark.h"

#include <chrono>
#include <utility>

#include "error.h"
#include "runtime.h"

namespace tandem {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

TimeMark::TimeMark(Device device) noexcept : ns_(now_ns()) {
  if (device.type == DeviceType::CPU) return;
  try {
    mark_ = std::make_shared<const kernels::cuda::Mark>(*device_state(device).queue);
  } catch (const Error&) {  // the device has failed: ns_ is all there is
  }
}

TimeMark::TimeMark(kernels::cuda::Mark mark)
    : ns_(now_ns()), mark_(std::make_shared<const kernels::cuda::Mark>(std::move(mark))) {}

bool TimeMark::passed() const noexcept {
  try {
    return !mark_ || mark_->passed();
  } catch (const Error&) {
    return true;
  }
}

std::int64_t TimeMark::time_ns() const noexcept {
  try {
    return mark_ ? mark_->time_ns() : ns_;
  } catch (const Error&) {
    return ns_;
  }
}

}  // namespace tandem
