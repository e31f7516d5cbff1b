#include "clocks.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "memory.h"
#include "symbol.h"

namespace tandem::simt {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr unsigned kNumberBits = 48;
constexpr OperationId kNumbers = OperationId{1} << kNumberBits;

thread_local const RunningOperation* running = nullptr;

/// The names of the last operations, by hash of their ids.
struct Past {
  OperationId id = 0;
  OperationName name;
  unsigned stream = 0;
};
struct Names {
  std::mutex mutex;
  std::array<Past, std::size_t{1} << 14> past;
};
Names& names() {
  static auto* n = new Names;
  return *n;
}
Past& place_of(OperationId id) {
  auto& past = names().past;
  return past[(id ^ (id >> kNumberBits) * 1021) % past.size()];
}

bool comes_before(OperationId id, const RunningOperation& self) {
  const std::size_t stream = id >> kNumberBits;
  return id == 0 || (stream < self.before->size() && (*self.before)[stream] >= id % kNumbers);
}

}  // namespace

void join(Time& time, const Time& other) {
  if (time.size() < other.size()) time.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) time[i] = std::max(time[i], other[i]);
}

std::string to_string(const OperationName& name) {
  return name.kernel ? "kernel " + name_of_function(name.kernel) : name.name;
}

const RunningOperation* running_operation() { return running; }
void set_running_operation(const RunningOperation* operation) { running = operation; }

void remember(const RunningOperation& operation) {
  const std::scoped_lock lock(names().mutex);
  place_of(operation.id) = {operation.id, operation.name, operation.stream};
}

OperationId use_word(WordUses& word, const RunningOperation& self, bool write) {
  const OperationId last = word.write.load(relaxed);
  if (last == self.id) {
    if (write) return 0;
  } else if (!comes_before(last, self)) {
    return last;
  }
  if (write) {
    for (std::atomic<std::uint64_t>* read : {&word.read, &word.other_read}) {
      const OperationId reader = read->load(relaxed);
      if (reader != self.id && !comes_before(reader, self)) return reader;
      read->store(0, relaxed);
    }
    word.write.store(self.id, relaxed);
    return 0;
  }
  // Two readers that are not ordered are remembered; of more, the last.
  const OperationId read = word.read.load(relaxed), other = word.other_read.load(relaxed);
  if (read == self.id || other == self.id) return 0;
  (comes_before(read, self) || !comes_before(other, self) ? word.read : word.other_read).store(self.id, relaxed);
  return 0;
}

std::string describe_conflict(OperationId other, const RunningOperation& self) {
  std::string text = "an earlier operation on another stream";
  {
    const std::scoped_lock lock(names().mutex);
    const Past& past = place_of(other);
    if (past.id == other) text = to_string(past.name) + " on stream " + std::to_string(past.stream);
  }
  return text + " used, and nothing orders stream " + std::to_string(self.stream) + " after that: no event between";
}

std::string use_range(const void* address, std::size_t bytes, bool write) {
  const RunningOperation* self = running;
  if (!shadow().uses || !self || self->id == 0 || bytes == 0 || device_of(address) < 0) return {};
  const auto first = static_cast<std::size_t>(static_cast<const char*>(address) - device_range().base);
  for (std::size_t i = first / kWord; i <= (first + bytes - 1) / kWord; ++i) {
    if (const OperationId other = use_word(shadow().uses[i], *self, write); other != 0) {
      const char* at = std::max<const char*>(static_cast<const char*>(address), device_range().base + i * kWord);
      return to_string(self->name) + (write ? " writes " : " reads ") + describe_address(at) + ", which " +
             describe_conflict(other, *self);
    }
  }
  return {};
}

}  // namespace tandem::simt
