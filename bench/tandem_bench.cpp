// tandem-bench COMMAND [OPTIONS]: measures the computer that it runs on.

#include <fmt/format.h>

#include <exception>

#include "commands.h"

namespace {

int run_command(int argc, char** argv) {
  CLI::App app{"Measures what Tandem's devices do on this computer.", "tandem-bench"};
  Run run;
  add_links(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "tandem-bench: {}\n", e.what());
    return 2;
  }
  if (!run) {
    fmt::print(stderr, "tandem-bench: wanted a command; --help lists them\n");
    return 2;
  }
  return run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_command(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "tandem-bench: {}\n", e.what());
    return 1;
  }
}
