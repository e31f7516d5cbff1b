// Build: clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz_idx.cpp $(the library's sources)
// Any bytes, as IDX or IDX by gzip, give a tensor or a FormatError.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "../../engine/error.h"
#include "../../nn/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tandem::data;
  try {
    read_idx(std::make_unique<MemorySource>(std::as_bytes(std::span(data, size))), "input");
  } catch (const tandem::FormatError&) {
  }
  return 0;
}
