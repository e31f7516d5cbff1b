#pragma once
// The exceptions that kernels can throw; engine/error.h has the others.

#include <stdexcept>
#include <string>

namespace tandem {

/// Base of every exception that Tandem throws. A failed call changes nothing and leaks nothing.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A call of the CUDA runtime, cuBLAS, cuDNN or a kernel failed. After a sticky one (an illegal address, say) the
/// device is dead: all later calls on it throw the first one's text.
class CudaError : public Error {
 public:
  CudaError(const std::string& what, int code, bool sticky) : Error(what), code_(code), sticky_(sticky) {}
  /// The library's own number for it.
  int code() const { return code_; }
  bool sticky() const { return sticky_; }

 private:
  int code_;
  bool sticky_;
};

}  // namespace tandem
