#include "fault.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <utility>

#include "block.h"
#include "clocks.h"
#include "control.h"
#include "enqueue.h"
#include "memory.h"
#include "runtime.h"
#include "symbol.h"

namespace tandem::simt {
namespace {

std::mutex mutex;
std::string text;
bool printing = true;
struct sigaction previous;

struct WrongAccess {
  const void* address;
  const void* code;
};
thread_local WrongAccess wrong_access{};

/// Whether the operation that the calling thread runs, if any, may touch that device's memory.
bool is_allowed(int device) {
  const RunningOperation* operation = running_operation();
  if (!operation || operation->name.kind == OperationKind::HostFunction) return false;
  return operation->name.kind != OperationKind::Kernel || operation->device == device ||
         peer_access(operation->device, device);
}

std::string describe(const WrongAccess& wrong) {
  const RunningOperation* operation = running_operation();
  std::string who = "illegal access to";
  if (find_allocation(wrong.address) && !is_allowed(device_of(wrong.address))) {
    who = in_kernel() ? "a kernel of device " + std::to_string(operation->device) + " touched, without peer access,"
                      : "host code touched";
  }
  return who + " " + describe_address(wrong.address) + ", at " + place_of_instruction(wrong.code);
}

[[noreturn]] void give_up_kernel() {
  abandon_kernel(describe(wrong_access));
  stop_kernel();
}

/// Makes the signal handler return into give_up_kernel(), which may then do what handlers may not.
void return_to_give_up(void* context) {
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
  const auto target = reinterpret_cast<std::uintptr_t>(&give_up_kernel);
#if defined(__x86_64__)
  // Past the red zone, as after a call.
  machine.gregs[REG_RSP] = ((machine.gregs[REG_RSP] - 128) & ~15LL) - 8;
  machine.gregs[REG_RIP] = static_cast<greg_t>(target);
#elif defined(__aarch64__)
  machine.pc = target;
#else
  static_cast<void>(machine);
  static_cast<void>(target);
  give_up_kernel();
#endif
}

const void* instruction(const void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  static_cast<void>(context);
  return nullptr;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  // A fault is not an asynchronous event: it happens in user code, which holds none of our locks.
  if (const int device = device_of(info->si_addr); device >= 0) {
    if (is_allowed(device) && open_allocation(info->si_addr)) return;
    wrong_access = {info->si_addr, instruction(context)};
    if (in_kernel()) return return_to_give_up(context);
    const std::string line = "simulated GPU: " + describe(wrong_access) + "\n";
    static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  }
  sigaction(signal, &previous, nullptr);  // the instruction is tried again, and the previous handler gets it
}

}  // namespace

void report(const std::string& line) {
  const std::scoped_lock lock(mutex);
  text += line + "\n";
  if (printing) std::fputs(("simulated GPU: " + line + "\n").c_str(), stderr);
}

void print_reports(bool print) {
  const std::scoped_lock lock(mutex);
  printing = print;
}

std::string take_report() {
  const std::scoped_lock lock(mutex);
  return std::exchange(text, {});
}

void install_fault_handler() {
  struct sigaction now {};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
  const std::scoped_lock lock(mutex);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous);
}

}  // namespace tandem::simt
