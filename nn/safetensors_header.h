#pragma once
// Private: the JSON header of a safetensors file.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "../engine/shape.h"

namespace tandem::data {

inline constexpr std::string_view kMetadataKey = "__metadata__";
inline constexpr std::string_view kChecksumKey = "tandem.crc32";
inline constexpr std::size_t kChecksumDigits = 8;

struct HeaderEntry {
  std::string name, dtype;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  ///< in the data
};

struct Header {
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
  std::size_t checksum_at = std::string_view::npos;  ///< of the digits, in the text
};

/// Reads the grammar of the header, strictly; it has a fixed depth, so nothing recurses. Duplicate and unknown keys are
/// errors. Whether ranges and shapes fit is the caller's business. Throws FormatError, naming `file`, tensor and byte.
Header parse_header(std::string_view text, const std::string& file);

/// The inverse, which sets checksum_at; the caller has checked the names. The text has a multiple of 8 bytes.
std::string write_header(Header& header);

/// Why a name is refused, or null.
const char* name_fault(std::string_view name);
bool is_utf8(std::string_view text);
/// A name for messages: quoted, shortened, without control characters.
std::string in_quotes(std::string_view name);

}  // namespace tandem::data
