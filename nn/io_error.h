#pragma once
// Private: how a failed system call becomes an IoError.

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "../engine/error.h"

namespace tandem::data {

/// "save_tensors: cannot write a.bin: No space left on device". `action` says who could not do what.
inline IoError io_error(const std::string& action, const std::filesystem::path& path, int error = errno) {
  return IoError(action + ' ' + path.string() + ": " + std::generic_category().message(error));
}

}  // namespace tandem::data
