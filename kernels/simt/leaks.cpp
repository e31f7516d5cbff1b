#include "leaks.h"

#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "control.h"
#include "options.h"
#include "symbol.h"

namespace tandem::simt {
namespace {

struct Made {
  Resource kind;
  int device;
  std::size_t bytes;
  const void* caller;
};
struct Registry {
  std::mutex mutex;
  std::map<const void*, Made> live;
};
Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

thread_local int permanent = 0;

const char* noun(Resource kind, bool several) {
  switch (kind) {
    case Resource::Memory: return several ? "allocations" : "allocation";
    case Resource::Pinned: return several ? "pieces of pinned memory" : "piece of pinned memory";
    case Resource::Stream: return several ? "streams" : "stream";
    default: return several ? "events" : "event";
  }
}

__attribute__((destructor)) void tell_leaks() {
  const std::string text = leaks();
  if (text.empty()) return;
  std::fflush(nullptr);
  std::fputs(text.c_str(), stderr);
  _exit(1);
}

}  // namespace

void note_made(Resource kind, const void* handle, int device, std::size_t bytes, const void* caller) {
  if (!options().check.leaks || permanent > 0) return;
  Registry& r = registry();
  const std::scoped_lock lock(r.mutex);
  r.live[handle] = {kind, device, bytes, caller};
}

void note_gone(const void* handle) {
  if (!options().check.leaks) return;
  Registry& r = registry();
  const std::scoped_lock lock(r.mutex);
  r.live.erase(handle);
}

Permanent::Permanent() { ++permanent; }
Permanent::~Permanent() { --permanent; }

std::string leaks() {
  // Those that were made at one place are told together.
  struct Sum {
    std::size_t count = 0, bytes = 0;
  };
  std::map<std::tuple<Resource, int, const void*>, Sum> sums;
  {
    Registry& r = registry();
    const std::scoped_lock lock(r.mutex);
    for (const auto& [handle, made] : r.live) {
      Sum& sum = sums[{made.kind, made.device, made.caller}];
      ++sum.count;
      sum.bytes += made.bytes;
    }
  }
  std::string text;
  for (const auto& [key, sum] : sums) {
    const auto& [kind, device, caller] = key;
    const void* call = static_cast<const char*>(caller) - 1;
    text += "simulated GPU: leak: " + std::to_string(sum.count) + " " + noun(kind, sum.count > 1);
    if (sum.bytes > 0) text += " of " + std::to_string(sum.bytes) + " bytes";
    if (kind != Resource::Pinned) text += " on device " + std::to_string(device);
    text += ", made by " + name_of_function(call) + " at " + place_of_instruction(call) + "\n";
  }
  return text;
}

}  // namespace tandem::simt
