#pragma once
// Names and places of code addresses, for messages.

#include <string>

namespace tandem::simt {

/// The demangled name of the function at this address, without its parameters.
std::string name_of_function(const void* address);
/// "file:line" of an instruction as addr2line tells it, or "module+0x1234" where that program is not there.
std::string place_of_instruction(const void* address);

}  // namespace tandem::simt
