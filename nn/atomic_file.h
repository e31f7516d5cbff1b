#pragma once
// A file that appears whole or not at all.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace tandem::data {

/// Writes a file so that `path` holds either what it held before or everything that was written, whatever happens in
/// between: an exception, a full disk, kill -9, a power cut. The bytes go to a temporary file in the same directory,
/// which commit() syncs and renames. A killed process leaves the temporary file (".tandem-*.tmp") behind.
///
/// A file that existed keeps its permissions; a new one gets those that the umask leaves. A symbolic link is followed.
/// Every failure is an IoError with the system's reason; the temporary file is then removed. Several writers of one
/// path do not disturb each other: the last commit wins.
class AtomicFile {
 public:
  /// Throws IoError if `path` exists and is no regular file, or if its directory cannot be written to.
  explicit AtomicFile(std::filesystem::path path);
  /// Removes the temporary file unless it was committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends. Not buffered: write large pieces.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Puts the file in place. Call it once, last.
  void commit();

 private:
  void discard() noexcept;

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

/// All of the above for a text that is at hand.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace tandem::data
