#include "symbol.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <utility>

namespace tandem::simt {
namespace {

struct Line {
  std::string function, place;
};

/// The file that an address was loaded from.
std::string module_of(const void* address, Dl_info& info) {
  void* map = nullptr;
  if (dladdr1(address, &info, &map, RTLD_DL_LINKMAP) == 0 || !info.dli_fname) return {};
  // The program's name is what it was called by, perhaps in another folder.
  const char* name = static_cast<const link_map*>(map)->l_name;
  return name && *name ? name : "/proc/" + std::to_string(getpid()) + "/exe";
}

/// Whether a line is in a header that is none of the kernel's.
bool is_foreign(const std::string& place) {
  return place.find("/include/c++/") != std::string::npos || place.find("/simt/device.h:") != std::string::npos;
}

/// What addr2line says of an address in a loaded module; empty where it does not know.
Line ask_addr2line(const void* address) {
  Dl_info info{};
  const std::string module = module_of(address, info);
  if (module.empty()) return {};
  // Programs at fixed addresses are looked up by address, all else by offset.
  const auto offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  std::ostringstream command;
  command << "addr2line -i -f -C -e '" << module << "' 0x" << std::hex << offset << " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.str().c_str(), "r"), pclose);
  // The function and its line; if they were inlined, then their caller's, and so on.
  Line line;
  char text[2][1024] = {};
  while (pipe && std::fgets(text[0], sizeof text[0], pipe.get()) && std::fgets(text[1], sizeof text[1], pipe.get())) {
    line = {text[0], text[1]};
    if (!is_foreign(line.place)) break;
  }
  for (std::string* s : {&line.function, &line.place}) {
    s->erase(s->find_last_not_of('\n') + 1);
    const std::size_t note = s->find(" (discriminator");
    if (note != std::string::npos) s->erase(note);
    if (s->find('?') != std::string::npos) s->clear();
  }
  line.place.erase(0, line.place.rfind('/') + 1);
  return line;
}

std::string without_parameters(std::string name) {
  const std::string unnamed = "(anonymous namespace)::";
  for (std::size_t at = 0; (at = name.find(unnamed)) != std::string::npos;) name.erase(at, unnamed.size());
  int depth = 0;  // in template arguments
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
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
  return without_parameters(std::move(name));
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
