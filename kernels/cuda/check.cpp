#include "check.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "../error.h"

namespace tandem::kernels::cuda {
namespace {

struct Death {
  std::atomic<bool> is{false};
  std::string text;
  int code = 0;
};

std::mutex mutex;
std::array<Death, 64> deaths;  // by physical device

}  // namespace

bool is_sticky(cudaError_t code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable: return true;
    default: return false;
  }
}

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // so that the next call does not find it again
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  const std::string text = std::string(what) + " failed on GPU " + std::to_string(device) + ": " +
                           cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")";
  if (!is_sticky(code)) throw CudaError(text, code, false);
  {
    const std::scoped_lock lock(mutex);
    Death& death = deaths.at(static_cast<std::size_t>(device));
    if (!death.is) {
      death.text = text;
      death.code = code;
      death.is = true;
    }
  }
  check_alive(device);
}

void check_alive(int physical_device) {
  const Death& death = deaths.at(static_cast<std::size_t>(physical_device));
  if (death.is) throw CudaError(death.text, death.code, true);
}

}  // namespace tandem::kernels::cuda
