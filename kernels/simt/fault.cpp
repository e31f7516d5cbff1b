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

void* instruction(const void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  return nullptr;
#endif
}

/// Whether the calling thread may touch that device's memory; if not, says who does.
bool is_allowed(int device, std::string& who) {
  const RunningOperation* operation = running_operation();
  if (!operation || operation->name.kind == OperationKind::HostFunction) {
    who = "host code touched";
    return false;
  }
  if (operation->name.kind == OperationKind::Kernel && operation->device != device &&
      !peer_access(operation->device, device)) {
    who = "a kernel of device " + std::to_string(operation->device) + " touched, without peer access,";
    return false;
  }
  return true;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  // A fault is not an asynchronous event: it happens in user code, which holds none of our locks.
  if (const int device = device_of(info->si_addr); device >= 0) {
    std::string who;
    const bool allowed = is_allowed(device, who);
    if (allowed && open_allocation(info->si_addr)) return;
    const std::string what = (allowed || !find_allocation(info->si_addr) ? "illegal access to" : who) + " " +
                             describe_address(info->si_addr) + ", at " + place_of_instruction(instruction(context));
    if (in_kernel()) abandon_kernel(what);
    const std::string line = "simulated GPU: " + what + "\n";
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
