// AtomicFile: what is at the path after success, failure and sudden death.

#include "../../nn/atomic_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <ctime>
#include <thread>
#include <vector>

#include "../../engine/error.h"
#include "../catch.h"
#include "files.h"

using namespace tandem;
using namespace tandem::data;
using testing::content;
using testing::message;
using testing::put;
using testing::TempDir;

namespace {

unsigned mode_of(const std::filesystem::path& path) {
  struct stat s {};
  REQUIRE(::stat(path.c_str(), &s) == 0);
  return s.st_mode & 07777;
}

/// Runs `f` in a child process and returns its result, or -1 if a signal ended it.
template <class F>
int in_child(F f) {
  const pid_t child = ::fork();
  if (child == 0) {
    int result = 99;
    try {
      result = f();
    } catch (...) {
    }
    ::_exit(result);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("a file appears at commit", "[atomic_file]") {
  const TempDir dir;
  const auto path = put(dir / "file", "old");
  {
    AtomicFile file(path);
    file.write("new ");
    file.write("content");
    CHECK(content(path) == "old");
    file.commit();
  }
  CHECK(content(path) == "new content");
  {
    AtomicFile file(path);
    file.write("half");
  }
  CHECK(content(path) == "new content");
  write_file(path, "");
  CHECK(content(path).empty());
  CHECK(dir.files() == 1);
}

TEST_CASE("a file keeps its permissions", "[atomic_file]") {
  const TempDir dir;
  const auto path = put(dir / "file", "old");
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  write_file(path, "new");
  CHECK(mode_of(path) == 0640);

  const mode_t mask = ::umask(027);
  write_file(dir / "fresh", "new");
  ::umask(mask);
  CHECK(mode_of(dir / "fresh") == 0640);
}

TEST_CASE("a symbolic link stays one", "[atomic_file]") {
  const TempDir dir;
  put(dir / "file", "old");
  std::filesystem::create_symlink("file", dir / "link");
  write_file(dir / "link", "new");
  CHECK(std::filesystem::is_symlink(dir / "link"));
  CHECK(content(dir / "file") == "new");
}

TEST_CASE("what cannot be written is an IoError", "[atomic_file]") {
  const TempDir dir;
  const auto said = [](const std::filesystem::path& path) { return message<IoError>([&] { write_file(path, "x"); }); };
  CHECK_THAT(said(dir / "no" / "file"), ContainsSubstring("no/file: No such file or directory"));
  CHECK_THAT(said(dir.path()), ContainsSubstring("not a regular file"));
  CHECK_THAT(said("/dev/null"), ContainsSubstring("not a regular file"));
  CHECK_THAT(said(put(dir / "plain", "") / "file"), ContainsSubstring("Not a directory"));
  CHECK_FALSE(said(dir / std::string(300, 'x')).empty());
  CHECK_FALSE(said("").empty());
  write_file(dir / std::string(255, 'x'), "a name as long as can be");
  CHECK(dir.files() == 2);

  if (::geteuid() != 0) {
    REQUIRE(::chmod(dir.path().c_str(), 0555) == 0);
    CHECK_THAT(said(dir / "plain"), ContainsSubstring("Permission denied"));
    REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  }
}

TEST_CASE("when space runs out the old file stays", "[atomic_file]") {
  const TempDir dir;
  const auto path = put(dir / "file", "old");
  const int result = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10000, 10000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string said = message<IoError>([&] { write_file(path, std::string(20000, 'x')); });
    return said.find("File too large") != said.npos && dir.files() == 1 ? 0 : 1;
  });
  CHECK(result == 0);
  CHECK(content(path) == "old");
  CHECK(dir.files() == 1);
}

TEST_CASE("a process that is killed leaves the old file or the new one", "[atomic_file]") {
  const TempDir dir;
  const std::string versions[] = {std::string(200000, 'a'), std::string(300000, 'b')};
  const auto path = put(dir / "file", versions[0]);
  for (int round = 0; round < 40; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      [&]() noexcept {
        for (int i = 1;; i = 1 - i) write_file(path, versions[i]);
      }();
    }
    const timespec pause{0, 200000 + round * 137000};
    ::nanosleep(&pause, nullptr);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::string now = content(path);
    REQUIRE((now == versions[0] || now == versions[1]));
  }
  write_file(path, "works on");
  CHECK(content(path) == "works on");
}

TEST_CASE("writers of one path do not disturb each other", "[atomic_file]") {
  const TempDir dir;
  const auto path = dir / "file";
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'e'; ++c) {
    writers.emplace_back([&path, c] {
      for (int i = 0; i < 20; ++i) write_file(path, std::string(10000, c));
    });
  }
  for (auto& w : writers) w.join();
  const std::string now = content(path);
  CHECK(now == std::string(10000, now[0]));
  CHECK(dir.files() == 1);
}
