// c = beta c + a b in tiles of c that are held in registers (Goto and van de Geijn 2008): a panel of b is packed to
// stay in the first cache, a block of a to stay in the second.

inline constexpr int kTileRows = kVectorBytes == 64 ? 8 : 6;  // the accumulators fill most of the registers
inline constexpr int kTileVectors = 2;
inline constexpr std::int64_t kDepth = 192;
inline constexpr std::int64_t kBlockRows = 8 * kTileRows;

/// A matrix with any strides.
template <class T>
struct Strided {
  const T* data;
  std::int64_t row, col;
  Strided at(std::int64_t i, std::int64_t j) const { return {data + i * row + j * col, row, col}; }
};

/// R rows and C vectors of c, of which `width` columns exist. Rows of the panel are `step` apart. `Packed`: a has the
/// R elements of each column side by side.
template <class T, int R, int C, bool Packed>
__attribute__((noinline)) void gemm_tile(std::int64_t depth, Strided<T> a, const T* panel, std::int64_t step, T beta,
                                         T* c, std::int64_t ldc, std::int64_t width) {
  using V = typename Vector<T, kVectorBytes>::type;
  constexpr int lanes = Vector<T, kVectorBytes>::lanes;
  V acc[R][C] = {};
  for (std::int64_t l = 0; l < depth; ++l) {
    V b[C];
    for (int v = 0; v < C; ++v) b[v] = *reinterpret_cast<const V*>(panel + v * lanes);
    for (int r = 0; r < R; ++r) {
      const T x = Packed ? a.data[r] : a.data[r * a.row];
      for (int v = 0; v < C; ++v) acc[r][v] += x * b[v];
    }
    panel += step;
    a.data += Packed ? R : a.col;
  }
  for (int r = 0; r < R; ++r, c += ldc) {
    if (width == C * lanes) {
      for (int v = 0; v < C; ++v) {
        V& out = *reinterpret_cast<V*>(c + v * lanes);
        out = beta == T(0) ? acc[r][v] : beta * out + acc[r][v];
      }
    } else {
      T sums[C * lanes];
      for (int v = 0; v < C; ++v) *reinterpret_cast<V*>(sums + v * lanes) = acc[r][v];
      for (std::int64_t j = 0; j < width; ++j) c[j] = beta == T(0) ? sums[j] : beta * c[j] + sums[j];
    }
  }
}

/// A matrix whose rows follow in groups of kTileRows, each packed; or as it was.
template <class T>
struct Rows {
  Strided<T> a;
  std::int64_t count, depth;
  bool packed;
};

/// C vectors of columns of c.
template <class T, int C>
void gemm_panel(const Rows<T>& rows, const T* panel, std::int64_t step, T beta, T* c, std::int64_t ldc,
                std::int64_t width) {
  const Strided<T>& a = rows.a;
  std::int64_t i = 0;
  if (rows.packed) {
    for (; i + kTileRows <= rows.count; i += kTileRows) {
      gemm_tile<T, kTileRows, C, true>(rows.depth, {a.data + i * rows.depth, 1, kTileRows}, panel, step, beta,
                                       c + i * ldc, ldc, width);
    }
    return;
  }
  for (; i + kTileRows <= rows.count; i += kTileRows) {
    gemm_tile<T, kTileRows, C, false>(rows.depth, a.at(i, 0), panel, step, beta, c + i * ldc, ldc, width);
  }
  for (; i + 3 <= rows.count; i += 3) {
    gemm_tile<T, 3, C, false>(rows.depth, a.at(i, 0), panel, step, beta, c + i * ldc, ldc, width);
  }
  for (; i < rows.count; ++i) {
    gemm_tile<T, 1, C, false>(rows.depth, a.at(i, 0), panel, step, beta, c + i * ldc, ldc, width);
  }
}

template <class T>
void gemm_rows(const Rows<T>& rows, const T* panel, std::int64_t step, T beta, T* c, std::int64_t ldc,
               std::int64_t width) {
  if (width > Vector<T, kVectorBytes>::lanes) {
    gemm_panel<T, kTileVectors>(rows, panel, step, beta, c, ldc, width);
  } else {
    gemm_panel<T, 1>(rows, panel, step, beta, c, ldc, width);
  }
}

/// A square of 16 bytes by 16 bytes, transposed: lines `from` apart become lines `to` apart.
inline void transpose_square(const float* in, std::int64_t from, float* out, std::int64_t to) {
  using V = typename Vector<float, 16>::type;
  const V a = *reinterpret_cast<const V*>(in), b = *reinterpret_cast<const V*>(in + from);
  const V c = *reinterpret_cast<const V*>(in + 2 * from), d = *reinterpret_cast<const V*>(in + 3 * from);
  const V ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const V ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  *reinterpret_cast<V*>(out) = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
  *reinterpret_cast<V*>(out + to) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  *reinterpret_cast<V*>(out + 2 * to) = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
  *reinterpret_cast<V*>(out + 3 * to) = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
}
inline void transpose_square(const double* in, std::int64_t from, double* out, std::int64_t to) {
  using V = typename Vector<double, 16>::type;
  const V a = *reinterpret_cast<const V*>(in), b = *reinterpret_cast<const V*>(in + from);
  *reinterpret_cast<V*>(out) = __builtin_shufflevector(a, b, 0, 2);
  *reinterpret_cast<V*>(out + to) = __builtin_shufflevector(a, b, 1, 3);
}

/// `depth` rows and `width` columns of b, filled up with zeros to whole vectors.
template <class T>
void pack_panel(std::int64_t depth, std::int64_t width, Strided<T> b, T* packed) {
  constexpr std::int64_t full = kTileVectors * Vector<T, kVectorBytes>::lanes;
  constexpr std::int64_t side = 16 / sizeof(T);
  if (b.col == 1 && width == full) {
    for (std::int64_t l = 0; l < depth; ++l) {
      for (std::int64_t j = 0; j < full; ++j) packed[l * full + j] = b.data[l * b.row + j];
    }
    return;
  }
  std::int64_t j = 0;
  for (; b.row == 1 && j + side <= width; j += side) {
    std::int64_t l = 0;
    for (; l + side <= depth; l += side) {
      transpose_square(b.data + j * b.col + l, b.col, packed + l * full + j, full);
    }
    for (; l < depth; ++l) {
      for (std::int64_t q = j; q < j + side; ++q) packed[l * full + q] = b.data[l + q * b.col];
    }
  }
  const std::int64_t filled = width > Vector<T, kVectorBytes>::lanes ? full : Vector<T, kVectorBytes>::lanes;
  for (; j < filled; ++j) {
    for (std::int64_t l = 0; l < depth; ++l) {
      packed[l * full + j] = j < width ? b.data[l * b.row + j * b.col] : T(0);
    }
  }
}

/// `rows` rows, a multiple of kTileRows, and `depth` columns of a.
template <class T>
void pack_rows(std::int64_t rows, std::int64_t depth, Strided<T> a, T* packed) {
  for (std::int64_t i = 0; i < rows; i += kTileRows) {
    for (std::int64_t l = 0; l < depth; ++l) {
      for (int r = 0; r < kTileRows; ++r) packed[i * depth + l * kTileRows + r] = a.data[(i + r) * a.row + l * a.col];
    }
  }
}

template <class T>
void gemm_blocks(std::int64_t m, std::int64_t n, std::int64_t k, Strided<T> a, Strided<T> b, T beta, T* c,
                 std::int64_t ldc) {
  constexpr std::int64_t full = kTileVectors * Vector<T, kVectorBytes>::lanes;
  alignas(64) T panel[kDepth * full];
  alignas(64) T block[kDepth * kBlockRows];
  const bool pack_a = n >= 4 * full;
  for (std::int64_t l = 0; l < k; l += kDepth, beta = T(1)) {
    const std::int64_t depth = k - l < kDepth ? k - l : kDepth;
    for (std::int64_t i = 0; i < m; i += kBlockRows) {
      const std::int64_t rows = m - i < kBlockRows ? m - i : kBlockRows;
      const std::int64_t packed_rows = pack_a ? rows - rows % kTileRows : 0;
      pack_rows(packed_rows, depth, a.at(i, l), block);
      for (std::int64_t j = 0; j < n; j += full) {
        const std::int64_t width = n - j < full ? n - j : full;
        const Strided<T> source = b.at(l, j);
        const T* lines = source.data;
        std::int64_t step = source.row;
        // Whole lines that few tiles read may be read where they are.
        if (b.col != 1 || width < full || rows > 2 * kTileRows) {
          pack_panel(depth, width, source, panel);
          lines = panel;
          step = full;
        }
        T* out = c + i * ldc + j;
        gemm_rows<T>({{block, 0, 0}, packed_rows, depth, true}, lines, step, beta, out, ldc, width);
        gemm_rows<T>({a.at(i + packed_rows, l), rows - packed_rows, depth, false}, lines, step, beta,
                     out + packed_rows * ldc, ldc, width);
      }
    }
  }
}

/// y += x v, where the elements of a row of x are neighbours, and those of v.
template <class T>
void add_dot_products(std::int64_t rows, std::int64_t cols, const T* x, std::int64_t ld, const T* v, T* y,
                      std::int64_t y_step) {
  using V = typename Vector<T, kVectorBytes>::type;
  constexpr int lanes = Vector<T, kVectorBytes>::lanes;
  constexpr int R = 4;
  for (std::int64_t i = 0; i < rows; i += R) {
    const int count = rows - i < R ? static_cast<int>(rows - i) : R;
    const T* line[R];
    for (int r = 0; r < R; ++r) line[r] = x + (i + (r < count ? r : 0)) * ld;
    V acc[R] = {};
    T sum[R] = {};
    std::int64_t j = 0;
    for (; j + lanes <= cols; j += lanes) {
      const V w = *reinterpret_cast<const V*>(v + j);
      for (int r = 0; r < R; ++r) acc[r] += *reinterpret_cast<const V*>(line[r] + j) * w;
    }
    for (; j < cols; ++j) {
      for (int r = 0; r < R; ++r) sum[r] += line[r][j] * v[j];
    }
    for (int r = 0; r < count; ++r) {
      for (int q = 0; q < lanes; ++q) sum[r] += acc[r][q];
      y[(i + r) * y_step] += sum[r];
    }
  }
}
