#pragma once
// What tests ask of simulated GPUs.

#include <chrono>
#include <cstddef>
#include <string>

namespace tandem::simt {

/// Whether what the simulator finds is also told on stderr, at once. It is, at first.
void print_reports(bool print);

/// While one exists, what the calling thread makes is meant to stay, and no leak: memory, streams, events.
class Permanent {
 public:
  Permanent();
  ~Permanent();
  Permanent(const Permanent&) = delete;
  Permanent& operator=(const Permanent&) = delete;
};
/// What would be a leak if the program ended now, a line for each place that made some. With TANDEM_SIM_CHECK=leaks.
std::string leaks();

/// Of device memory: nobody has written it. For allocators that give memory out again (TANDEM_SIM_CHECK=unwritten).
void mark_unwritten(const void* address, std::size_t bytes);

/// What can be made to fail. The codes are CUDA's, and for collectives NCCL's.
enum class Call {
  Malloc,      ///< cudaMalloc
  Pinned,      ///< cudaHostAlloc
  Copy,        ///< every kind of cudaMemcpy
  Launch,      ///< of a kernel
  Collective,  ///< of one rank
};
inline constexpr int kCalls = 5;
/// Its name in TANDEM_SIM_FAIL.
const char* name_of(Call call);

/// The n-th such call from now on (1: the next) fails with `code`, and does nothing. A code that stands for a fault of
/// the device, such as cudaErrorIllegalAddress, comes as on a real GPU: copies and launches are accepted, and the
/// device is dead when their turn comes. A collective that fails is the end of its communicator.
void fail(Call call, int n, int code);
/// Also those of TANDEM_SIM_FAIL.
void clear_failures();

/// Whether copies from one GPU to another arrive with a wrong bit from now on, as over a broken link.
void garble_peer_copies(bool garble);

/// Whether collectives that are issued from now on never end, as on a broken network: until their communicator is
/// aborted.
void hang_collectives(bool hang);

/// Whether collectives are held up, as long ones would be, until this is taken back: they read and write then.
void pause_collectives(bool pause);

/// How long ncclCommInitRank waits for the other ranks before it fails; 30 seconds at first.
void set_join_timeout(std::chrono::milliseconds timeout);

}  // namespace tandem::simt
