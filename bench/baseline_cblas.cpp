#include <cblas.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "baseline.h"

namespace {
constexpr int kBatch = 64;
constexpr int kSizes[] = {784, 256, 128, 10};
}  // namespace

std::function<void()> mlp_products() {
  auto buffer = std::make_shared<std::vector<float>>(std::size_t{4} << 20, 0.01F);
  return [buffer] {
    float* const a = buffer->data();
    float* const b = a + (1 << 20);
    float* const c = b + (1 << 20);
    for (int l = 0; l < 3; ++l) {  // y = x w^T
      const int in = kSizes[l];
      const int out = kSizes[l + 1];
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kBatch, out, in, 1, a, in, b, in, 0, c, out);
    }
    for (int l = 2; l >= 0; --l) {
      const int in = kSizes[l];
      const int out = kSizes[l + 1];
      // gw = g^T x; gx = g w, which the first layer does not need.
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, kBatch, 1, a, out, b, in, 0, c, in);
      if (l > 0) cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kBatch, in, out, 1, a, out, b, in, 0, c, in);
    }
  };
}
