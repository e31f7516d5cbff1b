// Loops of reduce.cpp, compiled per instruction set.

constexpr std::int64_t kMostColumns = 256;

template <class Op, class T, class A>
[[gnu::noinline]] void reduce_columns(A* sums, std::int64_t width, const T* in, std::int64_t step,
                                      std::int64_t row_step, std::int64_t rows) {
  std::int64_t r = 0;
  // Four rows at a time, for a quarter of the accumulator's traffic.
  for (; step == 1 && r + 4 <= rows; r += 4) {
    const T* a = in + r * row_step;
    const T* b = a + row_step;
    const T* c = b + row_step;
    const T* d = c + row_step;
    TANDEM_INDEPENDENT
    for (std::int64_t j = 0; j < width; ++j) {
      A ab = Op::combine(static_cast<A>(a[j]), static_cast<A>(b[j]));
      A cd = Op::combine(static_cast<A>(c[j]), static_cast<A>(d[j]));
      sums[j] = Op::combine(sums[j], Op::combine(ab, cd));
    }
  }
  for (; r < rows; ++r) {
    const T* a = in + r * row_step;
    TANDEM_INDEPENDENT
    for (std::int64_t j = 0; j < width; ++j) sums[j] = Op::combine(sums[j], static_cast<A>(a[j * step]));
  }
}

/// A line is reduced as a matrix with `width` columns, then its sums by halves.
template <class Op, class T>
typename Op::template Accumulator<T> reduce_folded(std::int64_t width, const T* in, std::int64_t step, std::int64_t n) {
  using A = typename Op::template Accumulator<T>;
  A sums[kMostColumns];
  for (std::int64_t j = 0; j < width; ++j) sums[j] = Op::template start<T>();
  const std::int64_t rows = n / width, rest = n - rows * width;
  reduce_columns<Op>(sums, width, in, step, width * step, rows);
  if (rest > 0) reduce_columns<Op>(sums, rest, in + rows * width * step, step, 0, 1);
  for (std::int64_t half = width / 2; half > 0; half /= 2) {
    TANDEM_INDEPENDENT
    for (std::int64_t j = 0; j < half; ++j) sums[j] = Op::combine(sums[j], sums[j + half]);
  }
  return sums[0];
}

template <class Op, class T>
typename Op::template Accumulator<T> reduce_line(const T* in, std::int64_t step, std::int64_t n) {
  using A = typename Op::template Accumulator<T>;
  if (n >= 4096) return reduce_folded<Op, T>(kMostColumns, in, step, n);
  if (n >= 32) return reduce_folded<Op, T>(32, in, step, n);
  A sum = Op::template start<T>();
  for (std::int64_t i = 0; i < n; ++i) sum = Op::combine(sum, static_cast<A>(in[i * step]));
  return sum;
}

template <class Op, class T>
void find_reduce(ReduceKernels<Op, T>& kernels) {
  kernels.line = reduce_line<Op, T>;
  kernels.columns = reduce_columns<Op, T, typename Op::template Accumulator<T>>;
}

template <class Op, class T>
std::int64_t find_in_line(const T* in, std::int64_t step, std::int64_t n) {
  const T best = reduce_line<Op, T>(in, step, n);
  std::int64_t i = 0;
  if (best == best) {
    while (i < n && in[i * step] != best) ++i;
  } else {
    while (i < n && in[i * step] == in[i * step]) ++i;
  }
  return i;
}

template <class Op, class T>
void find_in_columns(T* best, std::int64_t* places, std::int64_t width, const T* in, std::int64_t step,
                     std::int64_t row_step, std::int64_t rows) {
  for (std::int64_t j = 0; j < width; ++j) best[j] = in[j * step];
  for (std::int64_t j = 0; j < width; ++j) places[j] = 0;
  for (std::int64_t r = 1; r < rows; ++r) {
    const T* row = in + r * row_step;
    TANDEM_INDEPENDENT
    for (std::int64_t j = 0; j < width; ++j) {
      const T x = row[j * step];
      const bool better = Op::better(x, best[j]);
      best[j] = better ? x : best[j];
      places[j] = better ? r : places[j];
    }
  }
}

template <class Op, class T>
void find_reduce_index(ReduceIndexKernels<Op, T>& kernels) {
  kernels.line = find_in_line<Op, T>;
  kernels.columns = find_in_columns<Op, T>;
}
