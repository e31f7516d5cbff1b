#pragma once
// Running the blocks of a grid.

#include <functional>
#include <string>

#include "launch.h"

namespace tandem::simt {

/// Runs a grid in the calling thread. Returns what went wrong, or nothing: a barrier that some threads never reach, a
/// shuffle from a lane outside its mask, an access that faulted. The kernel is abandoned then.
/// `order_seed`: 0 starts threads in order; another number shuffles them, and chooses among those that can go on.
std::string run_grid(const LaunchShape& shape, const std::function<void()>& thread, unsigned order_seed);

/// Says why the kernel that the calling thread runs is abandoned. Afterwards, stop_kernel().
void abandon_kernel(const std::string& why);
/// Leaves the kernel, from anywhere in it, for good. Its stack is thrown away as it is: nothing on it may be waiting
/// for its destructor.
[[noreturn]] void stop_kernel();
bool in_kernel();

/// "kernel softmax<float>, block (1, 0, 0), thread (37, 0, 0)" of the running thread.
std::string whereabouts();

}  // namespace tandem::simt
