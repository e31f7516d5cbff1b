// Build: clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz_safetensors.cpp $(the sources)
// Any bytes give tensors or a FormatError. Each input is tried as a file, and as the header of one, with a checksum
// wanted and not.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "../../engine/error.h"
#include "../../nn/safetensors.h"

namespace {

void parse(const std::string& bytes, bool require_checksum) {
  try {
    tandem::data::parse_tensors(std::as_bytes(std::span(bytes)), "input", {.require_checksum = require_checksum});
  } catch (const tandem::FormatError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(std::uint64_t{size} >> 8 * i & 0xff);
  for (const bool require_checksum : {false, true}) {
    parse(bytes, require_checksum);
    parse(length + bytes, require_checksum);
    parse(length + bytes + std::string(16, '\0'), require_checksum);
  }
  return 0;
}
