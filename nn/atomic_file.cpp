// AtomicFile by temporary file, fsync and rename.

#include "atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>

#include "io_error.h"

namespace tandem::data {
namespace {

/// A file name of its own length, so that a long target name does not make it too long.
std::filesystem::path temporary_name(const std::filesystem::path& directory) {
  static std::atomic<unsigned> counter{0};
  return directory / (".tandem-" + std::to_string(::getpid()) + '-' + std::to_string(counter++) + ".tmp");
}

template <class F>
auto retry_interrupted(F call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code no_such_file;
  if (auto real = std::filesystem::canonical(path_, no_such_file); !no_such_file) path_ = std::move(real);

  struct stat old {};
  const bool exists = ::stat(path_.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) {
    throw IoError("cannot replace " + path_.string() + ": it is not a regular file");
  }
  const auto directory = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  do {
    temporary_ = temporary_name(directory);
    fd_ = retry_interrupted([&] { return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) throw io_error("cannot create a file beside", path_);
  if (exists && ::fchmod(fd_, old.st_mode & 07777) != 0) {
    const int error = errno;
    discard();
    throw io_error("cannot give its permissions to the new", path_, error);
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = retry_interrupted([&] { return ::write(fd_, bytes.data(), bytes.size()); });
    if (n < 0) throw io_error("cannot write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void AtomicFile::commit() {
  if (retry_interrupted([&] { return ::fsync(fd_); }) != 0) throw io_error("cannot sync", path_);
  if (::close(std::exchange(fd_, -1)) != 0) throw io_error("cannot close", path_);

  // Opened before the rename, so that as little as possible can fail after it.
  const auto directory = temporary_.parent_path();
  const int directory_fd = retry_interrupted([&] { return ::open(directory.c_str(), O_RDONLY | O_CLOEXEC); });
  if (directory_fd < 0) throw io_error("cannot open the directory of", path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::close(directory_fd);
    throw io_error("cannot replace", path_, error);
  }
  temporary_.clear();
  const bool synced = retry_interrupted([&] { return ::fsync(directory_fd); }) == 0;
  const int error = errno;
  ::close(directory_fd);
  // Some file systems know no fsync of directories.
  if (!synced && error != EINVAL && error != ENOTSUP) throw io_error("cannot sync the directory of", path_, error);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace tandem::data
