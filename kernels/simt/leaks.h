#pragma once
// What a program has made and not given back (TANDEM_SIM_CHECK=leaks). At exit, after the destructors of static
// objects, it is listed on stderr, and the program fails. See also Permanent in control.h.

#include <cstddef>

namespace tandem::simt {

enum class Resource { Memory, Pinned, Stream, Event };

/// `caller`: an address in the code that made it.
void note_made(Resource kind, const void* handle, int device, std::size_t bytes, const void* caller);
void note_gone(const void* handle);

}  // namespace tandem::simt
