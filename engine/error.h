#pragma once
// The exceptions of the library. Every message names the operation, what came, and what was wanted.

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

}  // namespace tandem
