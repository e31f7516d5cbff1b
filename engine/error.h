#pragma once
// The exceptions of the library. Every message names the operation, what came, and what was wanted.

#include <cstddef>
#include <string>

#include "../kernels/error.h"

namespace tandem {

/// Sizes that do not fit together.
class ShapeError : public Error {
  using Error::Error;
};
/// A dtype that an operation does not take.
class DTypeError : public Error {
  using Error::Error;
};
/// Tensors on different devices, or a device that does not exist.
class DeviceError : public Error {
  using Error::Error;
};
/// An index or a dimension out of range.
class IndexError : public Error {
  using Error::Error;
};
/// An argument outside its range.
class ValueError : public Error {
  using Error::Error;
};
/// A broken rule of the tape: in-place changes, freed buffers, missing graphs.
class AutogradError : public Error {
  using Error::Error;
};
/// A file that cannot be opened, read or written.
class IoError : public Error {
  using Error::Error;
};
/// A file whose content is not what its format says.
class FormatError : public Error {
  using Error::Error;
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

}  // namespace tandem
