// Loops of softmax and cross entropy. A row's maximum is taken off first, so that exp does not overflow; a row of
// -inf, and one with +inf or NaN, becomes NaN by itself.

template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <class T>
T row_max(const T* x, std::int64_t n) {
  using V = typename Vector<T, kVectorBytes>::type;
  constexpr std::int64_t lanes = Vector<T, kVectorBytes>::lanes;
  T max = -kInfinity<T>;
  std::int64_t i = 0;
  if (n >= lanes) {
    V m = *reinterpret_cast<const V*>(x);
    for (i = lanes; i + lanes <= n; i += lanes) {
      const V v = *reinterpret_cast<const V*>(x + i);
      m = v > m ? v : m;
    }
    for (int l = 0; l < lanes; ++l) max = m[l] > max ? m[l] : max;
  }
  for (; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

/// Sums in T over short stretches, and over those in double.
template <class T>
double row_sum(const T* x, std::int64_t n) {
  using V = typename Vector<T, kVectorBytes>::type;
  constexpr std::int64_t lanes = Vector<T, kVectorBytes>::lanes;
  double sum = 0;
  std::int64_t i = 0;
  while (i + lanes <= n) {
    V part = {};
    for (int r = 0; r < 32 && i + lanes <= n; ++r, i += lanes) part += *reinterpret_cast<const V*>(x + i);
    for (int l = 0; l < lanes; ++l) sum += static_cast<double>(part[l]);
  }
  for (; i < n; ++i) sum += static_cast<double>(x[i]);
  return sum;
}

template <class T>
double row_dot(const T* x, const T* y, std::int64_t n) {
  using V = typename Vector<T, kVectorBytes>::type;
  constexpr std::int64_t lanes = Vector<T, kVectorBytes>::lanes;
  double sum = 0;
  std::int64_t i = 0;
  while (i + lanes <= n) {
    V part = {};
    for (int r = 0; r < 32 && i + lanes <= n; ++r, i += lanes) {
      part += *reinterpret_cast<const V*>(x + i) * *reinterpret_cast<const V*>(y + i);
    }
    for (int l = 0; l < lanes; ++l) sum += static_cast<double>(part[l]);
  }
  for (; i < n; ++i) sum += static_cast<double>(x[i] * y[i]);
  return sum;
}

/// exp(x - max) in stretches that stay in cache, without writing them anywhere else.
template <class T>
double row_exp_sum(const T* x, std::int64_t n, T max) {
  constexpr std::int64_t stretch = 256;
  T part[stretch];
  double sum = 0;
  for (std::int64_t i = 0; i < n; i += stretch) {
    const std::int64_t count = n - i < stretch ? n - i : stretch;
    for (std::int64_t j = 0; j < count; ++j) part[j] = math::exp(x[i + j] - max);
    sum += row_sum(part, count);
  }
  return sum;
}

/// Rows [begin, end) of c elements.
template <class T>
void softmax_rows(std::int64_t begin, std::int64_t end, std::int64_t c, const T* in, T* out, bool log) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = in + row * c;
    T* y = out + row * c;
    const T max = row_max(x, c);
    if (log) {
      const T log_sum = static_cast<T>(math::log(row_exp_sum(x, c, max)));
      TANDEM_INDEPENDENT
      for (std::int64_t j = 0; j < c; ++j) y[j] = x[j] - max - log_sum;
    } else {
      TANDEM_INDEPENDENT
      for (std::int64_t j = 0; j < c; ++j) y[j] = math::exp(x[j] - max);
      const T scale = static_cast<T>(1 / row_sum(y, c));
      for (std::int64_t j = 0; j < c; ++j) y[j] *= scale;
    }
  }
}

template <class T>
void softmax_backward_rows(std::int64_t begin, std::int64_t end, std::int64_t c, const T* g, const T* y, T* gx,
                           bool log) {
  for (std::int64_t at = begin * c; at < end * c; at += c) {
    if (log) {
      const T sum = static_cast<T>(row_sum(g + at, c));
      TANDEM_INDEPENDENT
      for (std::int64_t j = at; j < at + c; ++j) gx[j] = g[j] - math::exp(y[j]) * sum;
    } else {
      const T sum = static_cast<T>(row_dot(g + at, y + at, c));
      TANDEM_INDEPENDENT
      for (std::int64_t j = at; j < at + c; ++j) gx[j] = y[j] * (g[j] - sum);
    }
  }
}

inline constexpr std::int64_t kColumns = 64;

/// As softmax_rows for `width` <= kColumns neighbouring columns of a (c, inner) matrix.
template <class T>
void softmax_columns(std::int64_t width, std::int64_t c, std::int64_t inner, const T* in, T* out, bool log) {
  T max[kColumns], shift[kColumns];
  double sum[kColumns];
  for (std::int64_t j = 0; j < width; ++j) {
    max[j] = -kInfinity<T>;
    sum[j] = 0;
  }
  for (std::int64_t i = 0; i < c; ++i) {
    const T* x = in + i * inner;
    for (std::int64_t j = 0; j < width; ++j) max[j] = x[j] > max[j] ? x[j] : max[j];
  }
  for (std::int64_t i = 0; i < c; ++i) {
    const T* x = in + i * inner;
    for (std::int64_t j = 0; j < width; ++j) sum[j] += static_cast<double>(math::exp(x[j] - max[j]));
  }
  for (std::int64_t j = 0; j < width; ++j) shift[j] = static_cast<T>(log ? math::log(sum[j]) : 1 / sum[j]);
  for (std::int64_t i = 0; i < c; ++i) {
    const T* x = in + i * inner;
    T* y = out + i * inner;
    if (log) {
      TANDEM_INDEPENDENT
      for (std::int64_t j = 0; j < width; ++j) y[j] = x[j] - max[j] - shift[j];
    } else {
      TANDEM_INDEPENDENT
      for (std::int64_t j = 0; j < width; ++j) y[j] = math::exp(x[j] - max[j]) * shift[j];
    }
  }
}

template <class T>
void softmax_backward_columns(std::int64_t width, std::int64_t c, std::int64_t inner, const T* g, const T* y, T* gx,
                              bool log) {
  double sum[kColumns] = {};
  for (std::int64_t i = 0; i < c; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      const T v = g[i * inner + j];
      sum[j] += static_cast<double>(log ? v : v * y[i * inner + j]);
    }
  }
  for (std::int64_t i = 0; i < c; ++i) {
    const std::int64_t at = i * inner;
    if (log) {
      TANDEM_INDEPENDENT
      for (std::int64_t j = 0; j < width; ++j) {
        gx[at + j] = g[at + j] - math::exp(y[at + j]) * static_cast<T>(sum[j]);
      }
    } else {
      TANDEM_INDEPENDENT
      for (std::int64_t j = 0; j < width; ++j) gx[at + j] = y[at + j] * (g[at + j] - static_cast<T>(sum[j]));
    }
  }
}

/// Rows [begin, end) of x (n, c); targets out of range count as ignored.
template <class T>
void cross_entropy_rows(std::int64_t begin, std::int64_t end, std::int64_t c, const T* x, const std::int64_t* target,
                        std::int64_t ignore, T* loss, T* lse) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* logits = x + row * c;
    const T max = row_max(logits, c);
    const T log_sum = static_cast<T>(math::log(row_exp_sum(logits, c, max)));
    const std::int64_t t = target[row];
    lse[row] = max + log_sum;
    loss[row] = t == ignore || t < 0 || t >= c ? T(0) : max - logits[t] + log_sum;
  }
}

template <class T>
void cross_entropy_backward_rows(std::int64_t begin, std::int64_t end, std::int64_t c, const T* g, const T* x,
                                 const T* lse, const std::int64_t* target, std::int64_t ignore, T* gx) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* logits = x + row * c;
    T* out = gx + row * c;
    const std::int64_t t = target[row];
    if (t == ignore || t < 0 || t >= c) {
      for (std::int64_t j = 0; j < c; ++j) out[j] = T(0);
      continue;
    }
    const T scale = g[row];
    const T shift = lse[row];
    TANDEM_INDEPENDENT
    for (std::int64_t j = 0; j < c; ++j) out[j] = math::exp(logits[j] - shift) * scale;
    out[t] -= scale;
  }
}
