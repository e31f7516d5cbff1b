#include "op_record.h"

#include "ops.h"

namespace tandem {
namespace {

// A fixed mixing of 0, 1, 2, ...: an affine map modulo 61, which is prime, so values repeat only after 61 of them.
std::int64_t mixed(std::int64_t i, int variant) { return (i * 23 + 7 + 11 * variant) % 61; }

}  // namespace

Tensor sample(const Shape& shape, int variant) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::int64_t m = mixed(static_cast<std::int64_t>(i), variant) - 30;
    v[i] = (static_cast<double>(m >= 0 ? m + 1 : m) + 0.5 * static_cast<double>(i / 61)) / 8;
  }
  return from_vector(v, shape);
}

Tensor sample_positive(const Shape& shape, int variant) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = (static_cast<double>(mixed(static_cast<std::int64_t>(i), variant)) + 2 + 0.5 * static_cast<double>(i / 61)) /
           16;
  }
  return from_vector(v, shape);
}

Tensor sample_index(const Shape& shape, std::int64_t limit, int variant) {
  std::vector<std::int64_t> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = mixed(static_cast<std::int64_t>(i), variant) % limit;
  return from_vector(v, shape);
}

std::vector<OpRecord> op_records() {
  std::vector<OpRecord> all;
  for (auto family : {unary_records, binary_records, compare_records, reduce_records, matmul_records, view_records,
                      join_records, index_records, loss_records, conv_records, norm_records}) {
    const std::vector<OpRecord> records = family();
    all.insert(all.end(), records.begin(), records.end());
  }
  return all;
}

}  // namespace tandem
