#pragma once
// make_float4 and its like.

#include "vector_types.h"

#define TANDEM_SIMT_MAKE(name, type)                                          \
  inline name##1 make_##name##1(type x) { return {x}; }                       \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }            \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
TANDEM_SIMT_MAKE(char, signed char)
TANDEM_SIMT_MAKE(uchar, unsigned char)
TANDEM_SIMT_MAKE(short, short)
TANDEM_SIMT_MAKE(ushort, unsigned short)
TANDEM_SIMT_MAKE(int, int)
TANDEM_SIMT_MAKE(uint, unsigned int)
TANDEM_SIMT_MAKE(longlong, long long)
TANDEM_SIMT_MAKE(ulonglong, unsigned long long)
TANDEM_SIMT_MAKE(float, float)
TANDEM_SIMT_MAKE(double, double)
#undef TANDEM_SIMT_MAKE
