#pragma once
// The commands of tandem-bench.

#include <CLI/CLI.hpp>
#include <functional>

/// Each adds itself and its options to the program, and sets `run` when the command line names it: what is to be done
/// then, which gives the exit code.
using Run = std::function<int()>;
void add_links(CLI::App& app, Run& run);
