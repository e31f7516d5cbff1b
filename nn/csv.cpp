// Tables of numbers, read by std::from_chars, which knows no locale.

#include "csv.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <string_view>
#include <vector>

#include "../engine/error.h"
#include "../engine/ops.h"
#include "byte_source.h"

namespace tandem::data {
namespace {

/// Takes what is before the next `end` off the front of `text`.
std::string_view take_until(std::string_view& text, char end) {
  const std::size_t n = text.find(end);
  const std::string_view piece = text.substr(0, n);
  text.remove_prefix(n == text.npos ? text.size() : n + 1);
  return piece;
}

std::string_view trim(std::string_view s) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}

template <class T>
Tensor parse(std::string_view text, const std::string& name, const CsvOptions& options) {
  std::vector<T> values;
  std::int64_t rows = 0, columns = 0;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    std::string_view line = take_until(text, '\n');
    if (number <= options.skip_lines || trim(line).empty()) continue;
    std::int64_t column = 0;
    for (bool more = true; more;) {
      more = line.find(options.delimiter) != line.npos;
      std::string_view field = trim(take_until(line, options.delimiter));
      ++column;
      if (field.size() > 1 && field[0] == '+' && field[1] != '-') field.remove_prefix(1);
      T value{};
      const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
      if (error != std::errc() || end != field.data() + field.size()) {
        throw FormatError(fmt::format("read_csv: {}: line {}, column {}: \"{}\" is no {}", name, number, column,
                                      field.substr(0, 40), name_of(dtype_of<T>())));
      }
      values.push_back(value);
    }
    if (rows++ == 0) columns = column;
    if (column != columns) {
      throw FormatError(fmt::format("read_csv: {}: line {}, column {}: the row ends, but the first has {} columns",
                                    name, number, column, columns));
    }
  }
  if (rows == 0) throw FormatError("read_csv: " + name + ": has no rows");

  Tensor table = empty({rows, columns}, dtype_of<T>(), cpu());
  std::memcpy(table.data_ptr(), values.data(), table.nbytes());
  return table;
}

}  // namespace

Tensor read_csv(const std::filesystem::path& path, const CsvOptions& options) {
  if (options.skip_lines < 0) {
    throw ValueError(fmt::format("read_csv: skip_lines is {}, at least 0 is wanted", options.skip_lines));
  }
  if (options.delimiter == '\n' || options.delimiter == '\r') {
    throw ValueError("read_csv: the delimiter cannot be a line end");
  }
  if (options.dtype == kBool) throw ValueError("read_csv: dtype is bool, a dtype of numbers is wanted");

  const std::vector<std::byte> bytes = read_file(path);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark
  return visit_dtype(options.dtype, [&]<class T>(TypeTag<T>) -> Tensor {
    if constexpr (std::is_same_v<T, bool>) {
      return Tensor();
    } else {
      return parse<T>(text, path.string(), options);
    }
  });
}

}  // namespace tandem::data
