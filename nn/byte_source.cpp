// Reading files.

#include "byte_source.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "io_error.h"

namespace tandem::data {

FileSource::FileSource(std::filesystem::path path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "rbe")) {
  if (!file_) throw io_error("cannot open", path_);
}

std::size_t FileSource::read(std::span<std::byte> out) {
  const std::size_t n = std::fread(out.data(), 1, out.size(), file_.get());
  if (n < out.size() && std::ferror(file_.get())) throw io_error("cannot read", path_);
  return n;
}

std::size_t MemorySource::read(std::span<std::byte> out) {
  const std::size_t n = std::min(out.size(), bytes_.size());
  std::copy_n(bytes_.begin(), n, out.begin());
  bytes_ = bytes_.subspan(n);
  return n;
}

std::vector<std::byte> read_up_to(ByteSource& source, std::size_t limit) {
  std::vector<std::byte> bytes;
  for (;;) {
    const std::size_t have = bytes.size();
    const std::size_t want = std::min(limit, std::max<std::size_t>(have * 2, 1 << 16));
    if (want == have) return bytes;
    bytes.resize(want);
    const std::size_t n = source.read(std::span(bytes).subspan(have));
    if (n < want - have) {
      bytes.resize(have + n);
      return bytes;
    }
  }
}

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  FileSource file(path);
  return read_up_to(file, SIZE_MAX);
}

}  // namespace tandem::data
