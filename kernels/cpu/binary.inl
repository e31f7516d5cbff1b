// Row kernels of binary.cpp, compiled per instruction set.

/// y[i] = Op(a[i], b[i]).
template <class Op, class R, class T>
void binary_row(std::int64_t n, void* const (&data)[3], const std::int64_t (&steps)[3]) {
  R* y = static_cast<R*>(data[0]);
  const T* a = static_cast<const T*>(data[1]);
  const T* b = static_cast<const T*>(data[2]);
  if (steps[1] == 1 && steps[2] == 1) {
    TANDEM_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) y[i] = Op::forward(a[i], b[i]);
  } else if (steps[1] == 1) {
    const T right = *b;
    TANDEM_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) y[i] = Op::forward(a[i], right);
  } else if (steps[2] == 1) {
    const T left = *a;
    TANDEM_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) y[i] = Op::forward(left, b[i]);
  } else {
    const R value = Op::forward(*a, *b);
    for (std::int64_t i = 0; i < n; ++i) y[i] = value;
  }
}

void find_binary(BinaryOp op, DType dtype, RowKernel<3>& kernel) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(Op)                                                                                     \
  case BinaryOp::Op:                                                                                        \
    if constexpr (std::is_floating_point_v<T> || (std::is_same_v<T, bool> ? Op::booleans : Op::integers)) { \
      kernel = binary_row<Op, T, T>;                                                                        \
    }                                                                                                       \
    break;
      TANDEM_BINARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

void find_compare(CompareOp op, DType dtype, RowKernel<3>& kernel) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
#define TANDEM_CASE(Op)               \
  case CompareOp::Op:                 \
    kernel = binary_row<Op, bool, T>; \
    break;
      TANDEM_COMPARE_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  });
}

template <class Op, class T>
void power_row(std::int64_t n, void* const (&data)[2], const std::int64_t (&)[2]) {
  T* y = static_cast<T*>(data[0]);
  const T* x = static_cast<const T*>(data[1]);
  TANDEM_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) y[i] = Op::forward(x[i]);
}

/// Leaves `kernel` alone for other exponents.
void find_short_power(double exponent, DType dtype, RowKernel<2>& kernel) {
  visit_floating(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_short_power(exponent, [&](auto formula) { kernel = power_row<decltype(formula), T>; });
  });
}

/// The bounds have step 0.
template <class T>
void clamp_row(std::int64_t n, void* const (&data)[4], const std::int64_t (&steps)[4]) {
  T* y = static_cast<T*>(data[0]);
  const T* x = static_cast<const T*>(data[1]);
  const Clamp<T> clamp{*static_cast<const T*>(data[2]), *static_cast<const T*>(data[3])};
  if (steps[1] == 0) {
    const T value = clamp(*x);
    for (std::int64_t i = 0; i < n; ++i) y[i] = value;
  } else {
    TANDEM_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) y[i] = clamp(x[i]);
  }
}

void find_clamp(DType dtype, RowKernel<4>& kernel) {
  visit_dtype(dtype, [&](auto tag) { kernel = clamp_row<typename decltype(tag)::type>; });
}

/// Choice moves bits only, so one loop serves all types of a size.
template <class T>
void where_row(std::int64_t n, void* const (&data)[4], const std::int64_t (&steps)[4]) {
  T* y = static_cast<T*>(data[0]);
  const std::uint8_t* c = static_cast<const std::uint8_t*>(data[1]);  // bool would keep GCC from vectorising
  const T* a = static_cast<const T*>(data[2]);
  const T* b = static_cast<const T*>(data[3]);
  if (steps[1] == 0) {
    const T* from = *c != 0 ? a : b;
    const std::int64_t step = *c != 0 ? steps[2] : steps[3];
    for (std::int64_t i = 0; i < n; ++i) y[i] = from[i * step];
  } else if (steps[2] == 1 && steps[3] == 1) {
    TANDEM_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) {
      const T yes = a[i], no = b[i];
      y[i] = c[i] != 0 ? yes : no;
    }
  } else if (steps[2] == 1) {
    const T no = *b;
    TANDEM_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) {
      const T yes = a[i];
      y[i] = c[i] != 0 ? yes : no;
    }
  } else if (steps[3] == 1) {
    const T yes = *a;
    TANDEM_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) {
      const T no = b[i];
      y[i] = c[i] != 0 ? yes : no;
    }
  } else {
    const T yes = *a, no = *b;
    TANDEM_INDEPENDENT
    for (std::int64_t i = 0; i < n; ++i) y[i] = c[i] != 0 ? yes : no;
  }
}

void find_where(DType dtype, RowKernel<4>& kernel) {
  switch (size_of(dtype)) {
    case 1: kernel = where_row<std::uint8_t>; break;
    case 4: kernel = where_row<std::uint32_t>; break;
    default: kernel = where_row<std::uint64_t>; break;
  }
}
