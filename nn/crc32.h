#pragma once
// Private: the checksum of zlib and PNG (RFC 1952, section 8).

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::data {

/// The CRC-32 of some bytes; for bytes in pieces, pass what the pieces before gave.
inline std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0) {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1 ? 0xEDB88320U : 0U) ^ (c >> 1);
      table[i] = c;
    }
    return table;
  }();
  std::uint32_t c = ~before;
  for (std::byte b : bytes) c = kTable[(c ^ std::to_integer<std::uint32_t>(b)) & 0xff] ^ (c >> 8);
  return ~c;
}

}  // namespace tandem::data
