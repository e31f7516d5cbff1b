#include "failures.h"

#include <driver_types.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "options.h"

namespace tandem::simt {
namespace {

struct Failures {
  std::mutex mutex;
  std::array<unsigned long long, kCalls> calls{};
  std::vector<PlannedFailure> planned = options().failures;
};
Failures& failures() {
  static auto* f = new Failures;
  return *f;
}

}  // namespace

const char* name_of(Call call) {
  constexpr std::array<const char*, kCalls> names{"malloc", "pinned", "copy", "launch", "collective"};
  return names[static_cast<std::size_t>(call)];
}

void fail(Call call, int n, int code) {
  Failures& f = failures();
  const std::scoped_lock lock(f.mutex);
  const auto i = static_cast<std::size_t>(call);
  f.planned.push_back({static_cast<int>(call), f.calls[i] + static_cast<unsigned long long>(n), code});
}

void clear_failures() {
  Failures& f = failures();
  const std::scoped_lock lock(f.mutex);
  f.planned.clear();
}

int take_failure(Call call) {
  Failures& f = failures();
  const std::scoped_lock lock(f.mutex);
  const unsigned long long n = ++f.calls[static_cast<std::size_t>(call)];
  const auto found = std::find_if(f.planned.begin(), f.planned.end(), [&](const PlannedFailure& p) {
    return p.call == static_cast<int>(call) && p.n == n;
  });
  if (found == f.planned.end()) return 0;
  const int code = found->code;
  f.planned.erase(found);
  return code;
}

bool is_fault_of_device(int code) {
  switch (code) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure: return true;
    default: return false;
  }
}

}  // namespace tandem::simt
