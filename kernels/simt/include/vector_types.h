#pragma once
// CUDA's function specifiers, which mean nothing to a C++ compiler, and its small vector types.

#define __annotate__(a)
#define __location__(a) __annotate__(a)
#define __host__ __location__(host)
#define __device__ __location__(device)
#define __global__ __location__(global)
#define __shared__ __location__(shared)
#define __constant__ __location__(constant)
#define __launch_bounds__(...) __annotate__(launch_bounds(__VA_ARGS__))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))

// Vectors of 2 and 4 are aligned as a whole, up to 16 bytes, vectors of 1 and 3 as their elements.
#define TANDEM_SIMT_VECTORS(name, type, two, four) \
  struct name##1 {                                 \
    type x;                                        \
  };                                               \
  struct __align__(two) name##2 {                  \
    type x, y;                                     \
  };                                               \
  struct name##3 {                                 \
    type x, y, z;                                  \
  };                                               \
  struct __align__(four) name##4 {                 \
    type x, y, z, w;                               \
  };
TANDEM_SIMT_VECTORS(char, signed char, 2, 4)
TANDEM_SIMT_VECTORS(uchar, unsigned char, 2, 4)
TANDEM_SIMT_VECTORS(short, short, 4, 8)
TANDEM_SIMT_VECTORS(ushort, unsigned short, 4, 8)
TANDEM_SIMT_VECTORS(int, int, 8, 16)
TANDEM_SIMT_VECTORS(uint, unsigned int, 8, 16)
TANDEM_SIMT_VECTORS(longlong, long long, 16, 16)
TANDEM_SIMT_VECTORS(ulonglong, unsigned long long, 16, 16)
TANDEM_SIMT_VECTORS(float, float, 8, 16)
TANDEM_SIMT_VECTORS(double, double, 16, 16)
#undef TANDEM_SIMT_VECTORS

struct dim3 {
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
  unsigned x, y, z;
};
