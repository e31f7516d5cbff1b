// Row kernels of unary.cpp, compiled per instruction set.

/// A formula that does not hold everywhere (see Sin).
template <class Op>
concept Limited = Op::limited;

template <class Op, class T>
bool all_in_range(const T* x, std::int64_t n) {
  int outside = 0;
  for (std::int64_t i = 0; i < n; ++i) outside |= Op::in_range(x[i]) ? 0 : 1;
  return outside == 0;
}

template <class Op, class T>
void forward_loop(std::int64_t n, T* y, const T* x) {
  TANDEM_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = Op::forward(x[i]);
}

template <class Op, class T>
void backward_loop(std::int64_t n, T* y, const T* g, const T* x) {
  TANDEM_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = Op::backward(g[i], x[i]);
}

constexpr std::int64_t kRangeStretch = 512;

template <class Op, class T>
void unary_row(std::int64_t n, void* const (&data)[2], const std::int64_t (&)[2]) {
  T* y = static_cast<T*>(data[0]);
  const T* x = static_cast<const T*>(data[1]);
  if constexpr (Limited<Op>) {
    for (std::int64_t begin = 0; begin < n; begin += kRangeStretch) {
      std::int64_t end = n - begin < kRangeStretch ? n : begin + kRangeStretch;
      if (all_in_range<Op>(x + begin, end - begin)) {
        forward_loop<Op>(end - begin, y + begin, x + begin);
      } else {
        for (std::int64_t i = begin; i < end; ++i) {
          y[i] = Op::in_range(x[i]) ? Op::forward(x[i]) : Op::forward_far(x[i]);
        }
      }
    }
  } else {
    forward_loop<Op>(n, y, x);
  }
}

template <class Op, class T>
void unary_backward_row(std::int64_t n, void* const (&data)[3], const std::int64_t (&)[3]) {
  T* y = static_cast<T*>(data[0]);
  const T* g = static_cast<const T*>(data[1]);
  const T* x = static_cast<const T*>(data[2]);
  if constexpr (Limited<Op>) {
    for (std::int64_t begin = 0; begin < n; begin += kRangeStretch) {
      std::int64_t end = n - begin < kRangeStretch ? n : begin + kRangeStretch;
      if (all_in_range<Op>(x + begin, end - begin)) {
        backward_loop<Op>(end - begin, y + begin, g + begin, x + begin);
      } else {
        for (std::int64_t i = begin; i < end; ++i) {
          y[i] = Op::in_range(x[i]) ? Op::backward(g[i], x[i]) : Op::backward_far(g[i], x[i]);
        }
      }
    }
  } else {
    backward_loop<Op>(n, y, g, x);
  }
}

void find_unary(UnaryOp op, DType dtype, RowKernel<2>& kernel) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(Op, name)                                                                  \
  case UnaryOp::Op:                                                                            \
    if constexpr (std::is_floating_point_v<T> || (Op::integers && !std::is_same_v<T, bool>)) { \
      kernel = unary_row<Op, T>;                                                               \
    }                                                                                          \
    break;
      TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

void find_unary_backward(UnaryOp op, DType dtype, RowKernel<3>& kernel) {
  visit_floating(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(Op, name)           \
  case UnaryOp::Op:                     \
    kernel = unary_backward_row<Op, T>; \
    break;
      TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}
