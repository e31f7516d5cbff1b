// Builds without CUDA: there are no GPUs, and nothing else of cuda.h is ever called.

#include "cuda.h"
#include "error.h"

namespace tandem::kernels {
namespace {

[[noreturn]] void refuse() { throw Error("this build of Tandem has no CUDA"); }

}  // namespace

const Backend& cuda_backend() { refuse(); }

namespace cuda {

int gpu_count() { return 0; }
std::string why_no_gpus() { return "this build of Tandem has no CUDA; with -Dcuda=simulated it has simulated GPUs"; }
std::string gpu_name(int) { refuse(); }
Queue* open_queue(int, int, void (*)(int)) { refuse(); }
std::byte* allocate(Queue&, std::size_t) { refuse(); }
void free(Queue&, std::byte*) noexcept {}
void fill_bytes(Queue&, std::byte*, unsigned char, std::size_t) { refuse(); }
void copy_in(Queue&, std::byte*, const std::byte*, std::size_t) { refuse(); }
void copy_out(Queue&, std::byte*, const std::byte*, std::size_t) { refuse(); }
bool peers(const Queue&, const Queue&) { refuse(); }
void copy_between(Queue&, std::byte*, Queue&, const std::byte*, std::size_t) { refuse(); }
void synchronize(Queue&) { refuse(); }
FaultReport take_fault(Queue&) { refuse(); }

struct Mark::State {};
Mark::Mark(Queue&, Lane) { refuse(); }
Mark::~Mark() = default;
Mark::Mark(Mark&&) noexcept = default;
Mark& Mark::operator=(Mark&&) noexcept = default;
bool Mark::passed() const { refuse(); }
std::int64_t Mark::time_ns() const { refuse(); }

struct Collectives::State {};
std::unique_ptr<Collectives> Collectives::make(const std::vector<Queue*>&) { return nullptr; }
Collectives::~Collectives() = default;
void Collectives::broadcast(const std::vector<std::byte*>&, std::size_t) { refuse(); }
std::vector<Collectives::Span> Collectives::start_reduce(const std::vector<Sum>&, bool) { refuse(); }
void Collectives::finish() { refuse(); }

}  // namespace cuda
}  // namespace tandem::kernels
