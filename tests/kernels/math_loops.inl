// Loops over the elementary functions for test_math.cpp, compiled per instruction set.

template <class Op, class T>
void apply(T* out, const T* in, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = Op::forward(in[i]);
}
