#include "libraries.h"

#include <string>

#include "../error.h"
#include "check.h"

namespace tandem::kernels::cuda {

void throw_library_error(const char* function, const char* text, int code) {
  const cudaError_t cause = cudaPeekAtLastError();
  if (is_sticky(cause)) check(cause, function);
  throw CudaError(std::string(function) + ": " + text + " (" + std::to_string(code) + ")", code, false);
}

}  // namespace tandem::kernels::cuda
