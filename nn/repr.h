#pragma once
// Values as Python prints them, for the printing of modules. Internal.

#include <string>

#include "layers.h"

namespace tandem::nn {

std::string repr(bool value);
/// The shortest text that reads back as the number, with a point or an exponent: "0.1", "1.0", "1e-05".
std::string repr(double value);
std::string repr(Size2d size);
std::string repr(const Shape& shape);

}  // namespace tandem::nn
