#pragma once
// Small models and checks that the tests of the parallel layer share.

#include <tandem/tandem.h>

#include <string>
#include <vector>

#include "../catch.h"
#include "../devices.h"

namespace tandem::test {

/// y = x w^T with w given.
struct Scale : nn::Module {
  nn::Parameter w{tensor({3.0})};
  Tensor forward(const Tensor& x) { return x * w; }
  TANDEM_MODULE(Scale, w)
};

struct Mlp : nn::Module {
  nn::Linear fc1{6, 8}, fc2{8, 3};
  Tensor forward(const Tensor& x) { return fc2(relu(fc1(x))); }
  TANDEM_MODULE(Mlp, fc1, fc2)
};

/// Integer values, so that sums are exact in any order.
inline Tensor integers(const Shape& shape, int variant = 0, DType dtype = kFloat64) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<double>((static_cast<int>(i) * 7 + 3 * variant) % 11 - 5);
  return from_vector(v, shape).to(dtype);
}

/// Gives every parameter small integers.
inline void set_integers(nn::Module& m) {
  const NoGradGuard no_grad;
  int i = 0;
  for (Tensor& p : m.parameters()) p.copy_(integers(p.sizes(), ++i, p.dtype()));
}

inline std::vector<double> values(const Tensor& t) { return t.to_vector(); }

/// f() throws an E whose message has all these parts.
template <class E, class F>
void check_error(F f, const std::vector<std::string>& parts) {
  try {
    f();
    FAIL("no error");
  } catch (const E& e) {
    const std::string text = e.what();
    INFO(text);
    for (const std::string& part : parts) {
      INFO("wanted: " << part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
}

}  // namespace tandem::test
