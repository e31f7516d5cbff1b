// Values as Python prints them.

#include "repr.h"

#include <fmt/format.h>

namespace tandem::nn {

std::string repr(bool value) { return value ? "True" : "False"; }

std::string repr(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string repr(Size2d size) { return fmt::format("({}, {})", size.height, size.width); }

std::string repr(const Shape& shape) {
  if (shape.size() == 1) return fmt::format("({},)", shape[0]);
  return tandem::str(shape);
}

}  // namespace tandem::nn
