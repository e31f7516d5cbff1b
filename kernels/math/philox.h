#pragma once
// The counter-based generator Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", 2011) and what numbers its words make. Every device kind draws the same numbers from a PhiloxState, bit
// for bit, if built without fusing a * b + c (-ffp-contract=off, -fmad=false).
//
// Block b of a draw is philox(seed, stream, offset + b), four words w0..w3. With elements in row-major order:
//   uniform, float32   element 4 b + k: (w_k >> 8) 2^-24
//   uniform, float64   element 2 b + k: ((w_2k 2^32 + w_2k+1) >> 11) 2^-53
//   normal, float32    elements 4 b + 2 k and 4 b + 2 k + 1: normal_pair of the words w_2k and w_2k+1
//   normal, float64    elements 2 b and 2 b + 1: normal_pair of the word pairs w0 w1 and w2 w3
//   randint            element 2 b + k: lo + floor((w_2k 2^32 + w_2k+1) (hi - lo) / 2^64), for every dtype
//   dropout            element 4 b + k is kept if w_k >= p 2^32, for every dtype
// So a draw of n elements takes at most (n + 1) / 2 blocks. A draw with `skip` lacks the first elements of block 0.

#include <cstdint>
#include <type_traits>

#include "elementary.h"
#include "hd.h"

namespace tandem::kernels {

struct PhiloxBlock {
  std::uint32_t word[4];
};

TANDEM_HD PhiloxBlock philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter), c1 = static_cast<std::uint32_t>(counter >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c0, b = std::uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// The random bits of one floating number: a word for float, two for double.
template <class T>
using RandomBits = typename math::Ieee<T>::Bits;

TANDEM_HD std::uint64_t join_words(std::uint32_t high, std::uint32_t low) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

/// 0 <= u < 1, in steps of 2^-24 or 2^-53.
template <class T>
TANDEM_HD T unit_interval(RandomBits<T> bits) {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(static_cast<std::int32_t>(bits >> 8)) * 0x1p-24f;
  } else {
    return static_cast<double>(static_cast<std::int64_t>(bits >> 11)) * 0x1p-53;
  }
}

/// lo <= x < hi, also where rounding would reach hi.
template <class T>
TANDEM_HD T uniform_between(RandomBits<T> bits, T lo, T hi) {
  T x = lo + unit_interval<T>(bits) * (hi - lo);
  return x < hi ? x : lo;
}

/// Two independent numbers of the standard normal distribution (Box and Muller 1958).
template <class T>
struct NormalPair {
  T first, second;
};
template <class T>
TANDEM_HD NormalPair<T> normal_pair(RandomBits<T> radius_bits, RandomBits<T> angle_bits) {
  // 0 < u <= 1, with more steps near zero than unit_interval has, for the tails.
  T u;
  if constexpr (std::is_same_v<T, float>) {
    u = static_cast<float>(static_cast<std::int32_t>(radius_bits >> 1)) * 0x1p-31f + 0x1p-32f;
  } else {
    u = static_cast<double>(static_cast<std::int64_t>(radius_bits >> 1)) * 0x1p-63 + 0x1p-64;
  }
  T radius = math::sqrt(T(-2) * math::log(u));
  math::Quadrant<T> angle = math::turns(unit_interval<T>(angle_bits));
  return {radius * math::cos_of(angle), radius * math::sin_of(angle)};
}

/// floor(a b / 2^64).
TANDEM_HD std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a_low = a & 0xffffffffu, a_high = a >> 32, b_low = b & 0xffffffffu, b_high = b >> 32;
  const std::uint64_t cross = a_high * b_low + ((a_low * b_low) >> 32);
  return a_high * b_high + (cross >> 32) + (((cross & 0xffffffffu) + a_low * b_high) >> 32);
}

/// lo <= x < hi.
TANDEM_HD std::int64_t integer_between(std::uint64_t bits, std::int64_t lo, std::int64_t hi) {
  const std::uint64_t range = static_cast<std::uint64_t>(hi) - static_cast<std::uint64_t>(lo);
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(lo) + multiply_high(bits, range));
}

}  // namespace tandem::kernels
