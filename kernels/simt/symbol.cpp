#include "symbol.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

namespace tandem::simt {
namespace {

struct Line {
  std::string function, place;
};

/// What addr2line says of an address in a loaded module; empty where it does not know.
Line ask_addr2line(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || !info.dli_fname) return {};
  // Programs at fixed addresses are looked up by address, all else by offset.
  const auto offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  std::ostringstream command;
  command << "addr2line -s -f -C -e '" << info.dli_fname << "' 0x" << std::hex << offset << " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.str().c_str(), "r"), pclose);
  char text[2][1024] = {};
  if (!pipe || !std::fgets(text[0], sizeof text[0], pipe.get()) || !std::fgets(text[1], sizeof text[1], pipe.get())) {
    return {};
  }
  Line line{text[0], text[1]};
  for (std::string* s : {&line.function, &line.place}) {
    s->erase(s->find_last_not_of('\n') + 1);
    const std::size_t note = s->find(" (discriminator");
    if (note != std::string::npos) s->erase(note);
    if (s->find('?') != std::string::npos) s->clear();
  }
  return line;
}

}  // namespace

std::string name_of_function(const void* address) {
  std::string name = ask_addr2line(address).function;
  Dl_info info{};
  if (name.empty() && dladdr(address, &info) != 0 && info.dli_sname) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> plain(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status),
                                                       std::free);
    name = plain ? plain.get() : info.dli_sname;
  }
  if (name.empty()) return place_of_instruction(address);
  if (const std::size_t parameters = name.find('('); parameters != std::string::npos && parameters > 0) {
    if (name.compare(parameters, 11, "(anonymous ") != 0) name.erase(parameters);
  }
  return name;
}

std::string place_of_instruction(const void* address) {
  if (const Line line = ask_addr2line(address); !line.place.empty()) return line.place;
  Dl_info info{};
  std::ostringstream text;
  if (dladdr(address, &info) != 0 && info.dli_fname) {
    text << info.dli_fname << "+0x" << std::hex
         << reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  } else {
    text << address;
  }
  return text.str();
}

}  // namespace tandem::simt
