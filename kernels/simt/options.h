#pragma once
// What the environment says of the simulated machine. Read once, at the first use of CUDA.

#include <cstddef>

namespace tandem::simt {

enum class Schedule {
  Threads,  ///< each stream has a worker thread
  Serial,   ///< no threads: when the host waits, it runs the operations itself, from streams chosen at random
  Eager,    ///< each operation runs in the call that queues it: for a debugger
};

struct Options {
  int gpus = 4;                               ///< TANDEM_SIM_GPUS: 0 to 16
  std::size_t memory = std::size_t{2} << 30;  ///< TANDEM_SIM_MEMORY: bytes per GPU, with K, M or G
  bool peers = true;                          ///< TANDEM_SIM_PEERS: all or none
  Schedule schedule = Schedule::Threads;      ///< TANDEM_SIM_SCHEDULE: threads, eager, serial or serial:SEED
  unsigned schedule_seed = 1;
  unsigned order = 0;  ///< TANDEM_SIM_ORDER: seed of the order of a block's threads; 0: in order
};

/// Ends the program with a line on stderr when a variable has a bad value.
const Options& options();

}  // namespace tandem::simt
