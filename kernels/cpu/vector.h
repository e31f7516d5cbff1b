#pragma once
// A vector register of a given width, by the compilers' vector extension: arithmetic and v[i] work as on numbers.

namespace tandem::kernels::cpu {

/// `type` holds `lanes` elements and may be loaded from any T*, aligned as T.
template <class T, int Bytes>
struct Vector {
  typedef T type __attribute__((vector_size(Bytes), aligned(sizeof(T)), may_alias));
  static constexpr int lanes = Bytes / static_cast<int>(sizeof(T));
};

}  // namespace tandem::kernels::cpu
