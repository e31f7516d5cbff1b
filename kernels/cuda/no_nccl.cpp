// Where NCCL is not built in.

#include "libraries.h"
#include "nccl.h"

namespace tandem::kernels::cuda {
namespace {

[[noreturn]] void unavailable() { throw_library_error("NCCL", "not in this build", 0); }

}  // namespace

struct Communicator::Ranks {};

bool nccl_available() { return false; }

Communicator::Communicator(std::span<const int>) { unavailable(); }
Communicator::~Communicator() = default;
int Communicator::size() const { return 0; }
void Communicator::broadcast(int, void*, std::int64_t, DType, int, cudaStream_t) { unavailable(); }
void Communicator::reduce(int, const void*, void*, std::int64_t, DType, int, cudaStream_t) { unavailable(); }
void Communicator::all_reduce(int, const void*, void*, std::int64_t, DType, cudaStream_t) { unavailable(); }
void Communicator::check_async() const { unavailable(); }
void Communicator::abort() noexcept {}
Communicator::Group::Group() { unavailable(); }
Communicator::Group::~Group() {}
void Communicator::Group::end() {
  open_ = false;
  unavailable();
}

}  // namespace tandem::kernels::cuda
