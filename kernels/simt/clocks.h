#pragma once
// Who comes before whom among the operations of all streams (TANDEM_SIM_CHECK=streams).
//
// Each stream knows of each stream how many of its operations come before: those before it in its own queue, those that
// an event it waited for stands for, those that the host had waited for when it queued the operation, those of other
// ranks before a collective. The host counts as one, whatever its threads: what one has waited for, all have. So a
// wrong order between host threads is not found, and nothing that is in order is reported.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shadow.h"

namespace tandem::simt {

/// By stream: how many of its operations.
using Time = std::vector<std::uint64_t>;
void join(Time& time, const Time& other);

/// 16 bits of stream and 48 of the operation's number in it, from 1. 0: none.
using OperationId = std::uint64_t;

enum class OperationKind { Kernel, Copy, Library, HostFunction, Other };

/// Who does what, for messages.
struct OperationName {
  OperationKind kind = OperationKind::Other;
  const char* name = "";         ///< of a function of CUDA or a library
  const void* kernel = nullptr;  ///< or a kernel's address
};
std::string to_string(const OperationName& name);

/// An operation while it runs.
struct RunningOperation {
  OperationName name;
  int device;
  OperationId id = 0;            ///< 0 where streams are not checked
  const Time* before = nullptr;  ///< of its stream; it stays as it is meanwhile
  unsigned stream = 0;           ///< its stream's number, for messages
};
/// That of the calling thread, or null.
const RunningOperation* running_operation();
void set_running_operation(const RunningOperation* operation);

/// Remembers the operation's name for messages about later ones. Its id is not 0.
void remember(const RunningOperation& operation);

/// Remembers that the running operation uses a word. Another operation's id if nothing orders the two.
OperationId use_word(WordUses& word, const RunningOperation& self, bool write);
/// What the message says of that operation and this one: "... of kernel a on stream 3; nothing orders stream 4 after".
std::string describe_conflict(OperationId other, const RunningOperation& self);

/// Does all that for a range of addresses, host memory included, of which nothing is remembered. The fault, or nothing.
std::string use_range(const void* address, std::size_t bytes, bool write);

}  // namespace tandem::simt
