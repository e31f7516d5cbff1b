// Row kernels of copy.cpp, compiled per instruction set.

template <class To, class From>
void cast_row(std::int64_t n, void* const (&data)[2], const std::int64_t (&)[2]) {
  To* out = static_cast<To*>(data[0]);
  const From* in = static_cast<const From*>(data[1]);
  for (std::int64_t i = 0; i < n; ++i) out[i] = math::convert<To>(in[i]);
}

void find_cast(DType to, DType from, RowKernel<2>& kernel) {
  visit_dtype(to, [&](auto to_tag) {
    visit_dtype(from, [&](auto from_tag) {
      kernel = cast_row<typename decltype(to_tag)::type, typename decltype(from_tag)::type>;
    });
  });
}
