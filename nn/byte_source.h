#pragma once
// Bytes that are read from front to back: from a file, from memory, or out of gzip.

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace tandem::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `out` and returns how many bytes came: fewer than asked for only at the end.
  virtual std::size_t read(std::span<std::byte> out) = 0;
};

/// A file. Throws IoError, with the system's reason, if it cannot be opened or read.
class FileSource : public ByteSource {
 public:
  explicit FileSource(std::filesystem::path path);
  std::size_t read(std::span<std::byte> out) override;

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Bytes in memory, which must live as long.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::size_t read(std::span<std::byte> out) override;

 private:
  std::span<const std::byte> bytes_;
};

/// At most `limit` of the bytes that `source` still has. Memory grows with what arrives, not with `limit`.
std::vector<std::byte> read_up_to(ByteSource& source, std::size_t limit);

/// A whole file. Throws IoError.
std::vector<std::byte> read_file(const std::filesystem::path& path);

}  // namespace tandem::data
