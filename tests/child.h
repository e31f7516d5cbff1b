#pragma once
// Runs a test case of the same program in a process of its own: for what ends the process, or is read from the
// environment once.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>

#include "catch.h"

struct Child {
  int status;  ///< as of waitpid
  std::string output;
  bool passed() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

/// Whether this process was made by run_child.
inline bool is_child() { return std::getenv("TANDEM_TEST_CHILD") != nullptr; }

/// `test` is a hidden test case, which returns at once if not is_child(): names with wildcards find it too. Its
/// standard error, too, is in the output.
inline Child run_child(const std::string& test,
                       std::initializer_list<std::pair<const char*, const char*>> environment) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    setenv("TANDEM_TEST_CHILD", "1", 1);
    for (const auto& [name, value] : environment) setenv(name, value, 1);
    execl("/proc/self/exe", "test", test.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[1]);
  Child child{};
  char text[4096];
  for (ssize_t n = 0; (n = read(ends[0], text, sizeof text)) > 0;)
    child.output.append(text, static_cast<std::size_t>(n));
  close(ends[0]);
  REQUIRE(waitpid(pid, &child.status, 0) == pid);
  return child;
}
