#include "options.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

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
  read("TANDEM_SIM_PEERS", "all or none", [&](std::string_view text) {
    o.peers = text == "all";
    return o.peers || text == "none";
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
