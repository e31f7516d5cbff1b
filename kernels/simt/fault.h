#pragma once
// What went wrong, for people.

#include <string>

namespace tandem::simt {

/// All that the simulator has found since the last call, a line each. See also print_reports() in control.h.
std::string take_report();

/// Catches faults in device memory: one in a kernel abandons it, with a report of kernel, place, block, thread and
/// address; one in host code is told on stderr, and ends the program as it would without a simulator. Called often:
/// test frameworks and others install handlers of their own.
void install_fault_handler();

}  // namespace tandem::simt
