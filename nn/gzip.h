#pragma once
// Reading what gzip has compressed.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "byte_source.h"

namespace tandem::data {

/// Whether gzip's two magic bytes are at the front.
inline bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

/// The decompressed bytes of `source`, of which `ahead` has already been read. `name` stands in messages. Decompresses
/// no more than it is asked for. Reading throws FormatError for damaged or truncated data, a wrong checksum, and
/// anything behind the last gzip member; a checksum is only seen when the reader asks for more than there is. Throws
/// IoError in a build without zlib.
std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> source, std::span<const std::byte> ahead,
                                   const std::string& name);

}  // namespace tandem::data
