#pragma once
// The exceptions that kernels can throw; engine/error.h has the others.

#include <cstddef>
#include <stdexcept>
#include <string>

namespace tandem {

/// Base of every exception that Tandem throws. A failed call changes nothing and leaks nothing.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A device has no memory left for a request.
class MemoryError : public Error {
 public:
  MemoryError(const std::string& what, std::size_t requested, std::size_t cached)
      : Error(what), requested_(requested), cached_(cached) {}
  std::size_t requested() const { return requested_; }
  /// Bytes that the device's cache held when the request failed; they have been returned to the system.
  std::size_t cached() const { return cached_; }

 private:
  std::size_t requested_;
  std::size_t cached_;
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
