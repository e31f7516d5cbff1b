#pragma once
// What the environment says of the simulated machine. Read once, at the first use of CUDA.

#include <array>
#include <cstddef>
#include <vector>

namespace tandem::simt {

enum class Schedule {
  Threads,  ///< each stream has a worker thread
  Serial,   ///< no threads: when the host waits, it runs the operations itself, from streams chosen at random
  Eager,    ///< each operation runs in the call that queues it: for a debugger
};

inline constexpr int kMaxDevices = 16;

/// The n-th call of a kind, from the start of the program, is to fail: `call` is a Call of control.h.
struct PlannedFailure {
  int call;
  unsigned long long n;
  int code;
};

/// TANDEM_SIM_CHECK: what to look for besides the cheap checks, which are always on. A list with commas, or all.
struct Checks {
  bool memory = false;     ///< host code that touches device memory
  bool races = false;      ///< threads of a launch that use the same memory in no order; needs instrumented kernels
  bool unwritten = false;  ///< reads of memory that nothing wrote; needs instrumented kernels
  bool streams = false;    ///< streams that use the same memory in no order
  bool leaks = false;      ///< memory, streams and events that are still there at exit
};

struct Options {
  int gpus = 4;                               ///< TANDEM_SIM_GPUS: 0 to 16
  std::size_t memory = std::size_t{2} << 30;  ///< TANDEM_SIM_MEMORY: bytes per GPU, with K, M or G
  int major = 9, minor = 0;                   ///< TANDEM_SIM_CAPABILITY: the compute capability, such as 9.0
  /// TANDEM_SIM_PEERS: which pairs of devices can use each other's memory: all, none, or pairs such as 0-1,2-3.
  std::array<std::array<bool, kMaxDevices>, kMaxDevices> peers{};
  std::vector<PlannedFailure> failures;   ///< TANDEM_SIM_FAIL: such as malloc:3=2,launch:10=700; see control.h
  Schedule schedule = Schedule::Threads;  ///< TANDEM_SIM_SCHEDULE: threads, eager, serial or serial:SEED
  unsigned schedule_seed = 1;
  Checks check;
  unsigned order = 0;  ///< TANDEM_SIM_ORDER: seed of the order of a block's threads; 0: in order
};

/// Ends the program with a line on stderr when a variable has a bad value.
const Options& options();

}  // namespace tandem::simt
