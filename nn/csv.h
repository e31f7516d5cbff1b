#pragma once
// Tables of numbers as text.

#include <cstdint>
#include <filesystem>

#include "../engine/tensor.h"

namespace tandem::data {

struct CsvOptions {
  char delimiter = ',';
  std::int64_t skip_lines = 0;  ///< lines of heading to pass over
  DType dtype = kFloat32;       ///< of the result; not bool
};

/// Reads a table of numbers into a tensor (rows, columns). Numbers are written as in C ("-1.5e3", "nan", "inf"; whole
/// for integer dtypes), whatever the locale; blanks around them, blank lines and Windows line ends are passed over.
/// Throws IoError, and FormatError naming file, line and column if a field is no number that fits the dtype, a row is
/// longer or shorter than the first, or there is no row. ValueError for options outside their range.
Tensor read_csv(const std::filesystem::path& path, const CsvOptions& options = {});

}  // namespace tandem::data
