#pragma once
// Files for tests: a directory that cleans up after itself, and raw contents.

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace testing {

class TempDir {
 public:
  TempDir() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("tandem-test-" + std::to_string(::getpid()) + '-' + std::to_string(counter++));
    std::filesystem::create_directory(path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  /// How many files are in it.
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path put(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  return path;
}

inline std::string content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What an exception of kind E, thrown by `f`, says; "" if nothing is thrown. Others pass.
template <class E, class F>
std::string message(F f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

/// The start of a command that runs check_safetensors.py, or "" where there is no Python with numpy.
inline std::string check_safetensors() {
  const char* script = std::getenv("TANDEM_CHECK_SAFETENSORS");  // set by the build
  if (script == nullptr) return {};
  for (const std::string python : {"python3", "/usr/bin/python3"}) {
    if (std::system((python + " -c 'import numpy' 2>/dev/null").c_str()) == 0) return python + " '" + script + "' ";
  }
  return {};
}

}  // namespace testing
