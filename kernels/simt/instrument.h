#pragma once
// Kernels that tell of their accesses.
//
// Device code that is compiled with -fsanitize=thread calls a function before each access to memory. Usually these
// functions belong to ThreadSanitizer's library; where it is not linked, they are the simulator's. The simulator itself
// is compiled without, and does not tell.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "launch.h"
#include "race.h"
#include "shadow.h"

namespace tandem::simt {

struct Access {
  const void* address;
  std::size_t bytes;
  bool read, write, atomic;
  const void* code;  ///< the instruction after the call that told
};

/// Looks at all accesses of the kernels that an OS thread runs, one after another.
class AccessChecker {
 public:
  /// `shared` is the launch's dynamic shared memory, with kZone forbidden bytes on either side.
  void start_launch(const LaunchShape& shape, void* shared);
  void start_block(std::size_t threads);
  /// From here on this thread of the block runs, until pause().
  void run(std::size_t thread);
  void pause();
  LaunchOrder& order() { return order_; }

  /// Abandons the kernel if the access is wrong.
  void check(const Access& access);

 private:
  struct Bytes {
    const char* base = nullptr;
    std::size_t size = 0;
    bool has(const void* address) const {
      return static_cast<std::size_t>(static_cast<const char*>(address) - base) < size;
    }
  };
  /// Notes about memory that belongs to the block.
  struct Local {
    Bytes memory;
    std::vector<std::uint8_t> states;
    std::vector<WordTouches> touches;
    void set(const char* base, std::size_t size);
  };
  void check_device(const Access& access, std::size_t offset);
  void check_shared(const Access& access, Local& memory);
  void check_race(const Access& access, WordTouches* touches, std::size_t offset, bool shared);

  int device_ = 0;
  Bytes devices_;
  Local static_shared_, dynamic_shared_;
  std::size_t dynamic_bytes_ = 0;
  LaunchOrder order_;
};

/// Forbidden bytes before and behind dynamic shared memory.
inline constexpr std::size_t kZone = 256;

}  // namespace tandem::simt
