// Compiled while a build is set up: whether nvcc and the host's compiler go together.

#include <cuda_runtime.h>

#include <concepts>
#include <tuple>

template <std::integral T>
__global__ void probe(T* out) {
  *out = std::get<0>(std::tuple<T>(T(1)));
}
template __global__ void probe<int>(int*);
