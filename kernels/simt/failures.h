#pragma once
// Failures on demand; see control.h for how they are asked for.

#include "control.h"

namespace tandem::simt {

/// Counts a call. The code with which it is to fail, or 0.
int take_failure(Call call);
/// Whether a CUDA error means that the device is dead.
bool is_fault_of_device(int code);

}  // namespace tandem::simt
