// Loops of batch and layer normalisation. Sums run over short stretches in T, and over those in double.

/// Sums of two quantities.
template <class T>
struct Sums {
  using V = typename Vector<T, kVectorBytes>::type;
  static constexpr std::int64_t lanes = Vector<T, kVectorBytes>::lanes;
  static constexpr int kStretch = 32;  // vectors

  V first_part = {}, second_part = {};
  int vectors = 0;
  double first = 0, second = 0;

  void flush() {
    for (int l = 0; l < lanes; ++l) {
      first += static_cast<double>(first_part[l]);
      second += static_cast<double>(second_part[l]);
    }
    first_part = second_part = V{};
    vectors = 0;
  }

  /// d and d * d, with d = x - shift.
  void add_moments(const T* x, std::int64_t n, T shift) {
    for (std::int64_t i = 0; i < n; i += lanes) {
      V d = {};
      if (i + lanes <= n) {
        d = *reinterpret_cast<const V*>(x + i) - shift;
      } else {
        for (std::int64_t l = 0; i + l < n; ++l) d[l] = x[i + l] - shift;
      }
      first_part += d;
      second_part += d * d;
      if (++vectors == kStretch) flush();
    }
  }

  /// h and h * (x - mean), with h = g * w, or g where w is null.
  void add_gradient(const T* g, const T* w, const T* x, std::int64_t n, T mean) {
    for (std::int64_t i = 0; i < n; i += lanes) {
      V h = {}, d = {};
      if (i + lanes <= n) {
        h = *reinterpret_cast<const V*>(g + i);
        if (w != nullptr) h *= *reinterpret_cast<const V*>(w + i);
        d = *reinterpret_cast<const V*>(x + i) - mean;
      } else {
        for (std::int64_t l = 0; i + l < n; ++l) {
          h[l] = w != nullptr ? g[i + l] * w[i + l] : g[i + l];
          d[l] = x[i + l] - mean;
        }
      }
      first_part += h;
      second_part += h * d;
      if (++vectors == kStretch) flush();
    }
  }
};

/// The numbers of channels that one pass over columns handles: their sums are on the stack.
inline constexpr std::int64_t kColumns = 64;

/// Mean and biased variance from sums about `shift`.
template <class T>
void write_moments(double first, double second, double count, T shift, T& mean, T& var) {
  const double offset = first / count;
  const double spread = second / count - offset * offset;
  mean = static_cast<T>(static_cast<double>(shift) + offset);
  var = static_cast<T>(spread < 0 ? 0 : spread);
}

/// Channels [begin, end) of x (n, c, inner).
template <class T>
void channel_stats_planes(std::int64_t begin, std::int64_t end, std::int64_t n, std::int64_t c, std::int64_t inner,
                          const T* x, T* mean, T* var) {
  const double count = static_cast<double>(n * inner);
  for (std::int64_t j = begin; j < end; ++j) {
    Sums<T> rough;
    for (std::int64_t i = 0; i < n; ++i) rough.add_moments(x + (i * c + j) * inner, inner, T(0));
    rough.flush();
    const T shift = static_cast<T>(rough.first / count);
    Sums<T> sums;
    for (std::int64_t i = 0; i < n; ++i) sums.add_moments(x + (i * c + j) * inner, inner, shift);
    sums.flush();
    write_moments(sums.first, sums.second, count, shift, mean[j], var[j]);
  }
}

/// Columns [begin, end) of x (n, c).
template <class T>
void channel_stats_columns(std::int64_t begin, std::int64_t end, std::int64_t n, std::int64_t c, const T* x, T* mean,
                           T* var) {
  const double count = static_cast<double>(n);
  for (std::int64_t j0 = begin; j0 < end; j0 += kColumns) {
    const std::int64_t width = end - j0 < kColumns ? end - j0 : kColumns;
    double first[kColumns] = {}, second[kColumns] = {};
    T shift[kColumns] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < width; ++j) first[j] += static_cast<double>(x[i * c + j0 + j]);
    }
    for (std::int64_t j = 0; j < width; ++j) {
      shift[j] = static_cast<T>(first[j] / count);
      first[j] = 0;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const double d = static_cast<double>(x[i * c + j0 + j] - shift[j]);
        first[j] += d;
        second[j] += d * d;
      }
    }
    for (std::int64_t j = 0; j < width; ++j) {
      write_moments(first[j], second[j], count, shift[j], mean[j0 + j], var[j0 + j]);
    }
  }
}

/// Rows [begin, end) of x as (n * c, inner).
template <class T>
void batch_norm_planes(std::int64_t begin, std::int64_t end, std::int64_t c, std::int64_t inner, const T* x,
                       const T* mean, const T* invstd, const T* w, const T* b, T* out) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t j = row % c;
    const T m = mean[j];
    const T scale = w != nullptr ? invstd[j] * w[j] : invstd[j];
    const T offset = b != nullptr ? b[j] : T(0);
    const T* source = x + row * inner;
    T* line = out + row * inner;
    for (std::int64_t i = 0; i < inner; ++i) line[i] = (source[i] - m) * scale + offset;
  }
}

/// Rows [begin, end) of x (n, c).
template <class T>
void batch_norm_columns(std::int64_t begin, std::int64_t end, std::int64_t c, const T* x, const T* mean,
                        const T* invstd, const T* w, const T* b, T* out) {
  for (std::int64_t i = begin; i < end; ++i) {
    const T* source = x + i * c;
    T* line = out + i * c;
    for (std::int64_t j = 0; j < c; ++j) {
      T v = (source[j] - mean[j]) * invstd[j];
      if (w != nullptr) v *= w[j];
      if (b != nullptr) v += b[j];
      line[j] = v;
    }
  }
}

/// Channels [begin, end) of x (n, c, inner).
template <class T>
void batch_norm_backward_planes(std::int64_t begin, std::int64_t end, std::int64_t n, std::int64_t c,
                                std::int64_t inner, const T* g, const T* x, const T* mean, const T* invstd, const T* w,
                                bool training, T* gx, T* gw, T* gb) {
  const double count = static_cast<double>(n * inner);
  for (std::int64_t j = begin; j < end; ++j) {
    const T m = mean[j];
    const T scale = w != nullptr ? invstd[j] * w[j] : invstd[j];
    Sums<T> sums;
    if (training || gw != nullptr || gb != nullptr) {
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t at = (i * c + j) * inner;
        sums.add_gradient(g + at, nullptr, x + at, inner, m);
      }
      sums.flush();
    }
    const double inv = static_cast<double>(invstd[j]);
    if (gw != nullptr) gw[j] = static_cast<T>(sums.second * inv);
    if (gb != nullptr) gb[j] = static_cast<T>(sums.first);
    if (gx == nullptr) continue;
    const T offset = training ? static_cast<T>(sums.first / count) : T(0);
    const T slope = training ? static_cast<T>(sums.second * inv * inv / count) : T(0);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = (i * c + j) * inner;
      for (std::int64_t l = at; l < at + inner; ++l) gx[l] = scale * (g[l] - offset - (x[l] - m) * slope);
    }
  }
}

/// Columns [begin, end) of x (n, c).
template <class T>
void batch_norm_backward_columns(std::int64_t begin, std::int64_t end, std::int64_t n, std::int64_t c, const T* g,
                                 const T* x, const T* mean, const T* invstd, const T* w, bool training, T* gx, T* gw,
                                 T* gb) {
  const double count = static_cast<double>(n);
  for (std::int64_t j0 = begin; j0 < end; j0 += kColumns) {
    const std::int64_t width = end - j0 < kColumns ? end - j0 : kColumns;
    double first[kColumns] = {}, second[kColumns] = {};
    T offset[kColumns] = {}, slope[kColumns] = {}, scale[kColumns] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const std::int64_t at = i * c + j0 + j;
        first[j] += static_cast<double>(g[at]);
        second[j] += static_cast<double>(g[at]) * static_cast<double>(x[at] - mean[j0 + j]);
      }
    }
    for (std::int64_t j = 0; j < width; ++j) {
      const double inv = static_cast<double>(invstd[j0 + j]);
      if (gw != nullptr) gw[j0 + j] = static_cast<T>(second[j] * inv);
      if (gb != nullptr) gb[j0 + j] = static_cast<T>(first[j]);
      scale[j] = w != nullptr ? invstd[j0 + j] * w[j0 + j] : invstd[j0 + j];
      if (training) {
        offset[j] = static_cast<T>(first[j] / count);
        slope[j] = static_cast<T>(second[j] * inv * inv / count);
      }
    }
    if (gx == nullptr) continue;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const std::int64_t at = i * c + j0 + j;
        gx[at] = scale[j] * (g[at] - offset[j] - (x[at] - mean[j0 + j]) * slope[j]);
      }
    }
  }
}

/// Rows [begin, end) of x (n, c).
template <class T>
void layer_norm_rows(std::int64_t begin, std::int64_t end, std::int64_t c, const T* x, const T* w, const T* b,
                     double eps, T* out, T* mean, T* invstd) {
  for (std::int64_t i = begin; i < end; ++i) {
    T var = 0;
    channel_stats_planes(0, 1, 1, 1, c, x + i * c, mean + i, &var);
    invstd[i] = static_cast<T>(1 / __builtin_sqrt(static_cast<double>(var) + eps));
    const T m = mean[i];
    const T scale = invstd[i];
    for (std::int64_t j = 0; j < c; ++j) {
      T v = (x[i * c + j] - m) * scale;
      if (w != nullptr) v *= w[j];
      if (b != nullptr) v += b[j];
      out[i * c + j] = v;
    }
  }
}

/// Rows [begin, end) of the gradient of x (n, c).
template <class T>
void layer_norm_backward_rows(std::int64_t begin, std::int64_t end, std::int64_t c, const T* g, const T* x,
                              const T* mean, const T* invstd, const T* w, T* gx) {
  const double count = static_cast<double>(c);
  for (std::int64_t i = begin; i < end; ++i) {
    const T* gi = g + i * c;
    const T* xi = x + i * c;
    const T m = mean[i];
    const double inv = static_cast<double>(invstd[i]);
    Sums<T> sums;
    sums.add_gradient(gi, w, xi, c, m);
    sums.flush();
    const T scale = invstd[i];
    const T offset = static_cast<T>(sums.first / count);
    const T slope = static_cast<T>(sums.second * inv * inv / count);
    for (std::int64_t j = 0; j < c; ++j) {
      const T h = w != nullptr ? gi[j] * w[j] : gi[j];
      gx[i * c + j] = scale * (h - offset - (xi[j] - m) * slope);
    }
  }
}

/// Columns [begin, end) of the gradients of w and b; x is (n, c).
template <class T>
void layer_norm_backward_columns(std::int64_t begin, std::int64_t end, std::int64_t n, std::int64_t c, const T* g,
                                 const T* x, const T* mean, const T* invstd, T* gw, T* gb) {
  for (std::int64_t j0 = begin; j0 < end; j0 += kColumns) {
    const std::int64_t width = end - j0 < kColumns ? end - j0 : kColumns;
    double first[kColumns] = {}, second[kColumns] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      const T m = mean[i];
      const T scale = invstd[i];
      for (std::int64_t j = 0; j < width; ++j) {
        const std::int64_t at = i * c + j0 + j;
        first[j] += static_cast<double>(g[at]);
        second[j] += static_cast<double>(g[at] * ((x[at] - m) * scale));
      }
    }
    for (std::int64_t j = 0; j < width; ++j) {
      if (gw != nullptr) gw[j0 + j] = static_cast<T>(second[j]);
      if (gb != nullptr) gb[j0 + j] = static_cast<T>(first[j]);
    }
  }
}
