#include "options.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "control.h"

namespace tandem::simt {
namespace {

[[noreturn]] void refuse(const char* name, std::string_view value, const char* wanted) {
  std::fprintf(stderr, "%s=%.*s: wanted %s\n", name, static_cast<int>(value.size()), value.data(), wanted);
  std::exit(2);
}

bool read_number(std::string_view& text, unsigned long long& n) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc();
}

/// Calls f with each part of a list with commas, until f says false.
template <class F>
bool for_each_part(std::string_view text, F f) {
  while (true) {
    const std::size_t comma = text.find(',');
    if (!f(text.substr(0, comma))) return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

/// "A<separator>B", both numbers.
bool read_pair(std::string_view text, char separator, unsigned long long& a, unsigned long long& b) {
  if (!read_number(text, a) || text.empty() || text[0] != separator) return false;
  text.remove_prefix(1);
  return read_number(text, b) && text.empty();
}

bool read_peers(std::string_view text, Options& o) {
  if (text == "none") return true;
  if (text == "all") {
    for (std::size_t i = 0; i < o.peers.size(); ++i) {
      o.peers[i].fill(true);
      o.peers[i][i] = false;
    }
    return true;
  }
  return for_each_part(text, [&](std::string_view pair) {
    unsigned long long a = 0, b = 0;
    if (!read_pair(pair, '-', a, b) || a == b || a >= kMaxDevices || b >= kMaxDevices) return false;
    o.peers[a][b] = o.peers[b][a] = true;
    return true;
  });
}

bool read_failure(std::string_view text, Options& o) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view name = text.substr(0, colon);
  unsigned long long n = 0, code = 0;
  if (!read_pair(text.substr(colon + 1), '=', n, code) || n == 0 || code == 0 || code > 100000) return false;
  for (int call = 0; call < kCalls; ++call) {
    if (name != name_of(static_cast<Call>(call))) continue;
    o.failures.push_back({call, n, static_cast<int>(code)});
    return true;
  }
  return false;
}

bool read_check(std::string_view name, Checks& check) {
  constexpr std::pair<std::string_view, bool Checks::*> checks[] = {{"memory", &Checks::memory},
                                                                    {"races", &Checks::races},
                                                                    {"unwritten", &Checks::unwritten},
                                                                    {"streams", &Checks::streams},
                                                                    {"leaks", &Checks::leaks}};
  bool found = false;
  for (const auto& [known, member] : checks) {
    if (name != known && name != "all") continue;
    check.*member = found = true;
  }
  return found;
}

template <class F>
void read(const char* name, const char* wanted, F parse) {
  const char* value = std::getenv(name);
  if (value && !parse(std::string_view(value))) refuse(name, value, wanted);
}

Options from_environment() {
  Options o;
  read("TANDEM_SIM_GPUS", "a number, 0 to 16", [&](std::string_view text) {
    unsigned long long n = 0;
    if (!read_number(text, n) || !text.empty() || n > 16) return false;
    o.gpus = static_cast<int>(n);
    return true;
  });
  read("TANDEM_SIM_MEMORY", "bytes per GPU, such as 64M, at most 32G", [&](std::string_view text) {
    unsigned long long n = 0;
    if (!read_number(text, n)) return false;
    const std::size_t unit = std::string_view("KMG").find(text);
    const int shift = text.empty() ? 0 : text.size() == 1 && unit < 3 ? static_cast<int>(unit + 1) * 10 : -1;
    if (shift < 0 || n == 0 || n > (32ULL << 30 >> shift)) return false;
    o.memory = static_cast<std::size_t>(n << shift);
    return true;
  });
  read("TANDEM_SIM_CAPABILITY", "a compute capability, such as 9.0", [&](std::string_view text) {
    unsigned long long major = 0, minor = 0;
    if (!read_pair(text, '.', major, minor) || major == 0 || major > 99 || minor > 9) return false;
    o.major = static_cast<int>(major);
    o.minor = static_cast<int>(minor);
    return true;
  });
  read_peers("all", o);
  read("TANDEM_SIM_PEERS", "all, none, or pairs such as 0-1,2-3", [&](std::string_view text) {
    o.peers = {};
    return read_peers(text, o);
  });
  read("TANDEM_SIM_CHECK", "a list of memory, races, unwritten, streams, leaks; or all", [&](std::string_view text) {
    return for_each_part(text, [&](std::string_view part) { return read_check(part, o.check); });
  });
  read("TANDEM_SIM_FAIL", "calls that fail, such as malloc:3=2,launch:10=700", [&](std::string_view text) {
    return for_each_part(text, [&](std::string_view part) { return read_failure(part, o); });
  });
  read("TANDEM_SIM_SCHEDULE", "threads, eager, serial or serial:SEED", [&](std::string_view text) {
    if (text == "threads") return true;
    if (text == "eager") {
      o.schedule = Schedule::Eager;
      return true;
    }
    if (text.substr(0, 6) != "serial") return false;
    o.schedule = Schedule::Serial;
    text.remove_prefix(6);
    if (text.empty()) return true;
    if (text[0] != ':') return false;
    text.remove_prefix(1);
    unsigned long long n = 0;
    if (!read_number(text, n) || !text.empty()) return false;
    o.schedule_seed = static_cast<unsigned>(n);
    return true;
  });
  read("TANDEM_SIM_ORDER", "a number; 0: in order", [&](std::string_view text) {
    unsigned long long n = 0;
    if (!read_number(text, n) || !text.empty()) return false;
    o.order = static_cast<unsigned>(n);
    return true;
  });
  return o;
}

}  // namespace

const Options& options() {
  static const Options o = from_environment();
  return o;
}

}  // namespace tandem::simt
