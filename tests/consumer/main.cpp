// Uses a little of everything that a consumer links with: a tensor, the tape, a module.

#include <tandem/tandem.h>

int main() {
  using namespace tandem;
  Tensor x = ones({2, 3}).set_requires_grad(true);
  Tensor y = sum(mul(x, x));
  y.backward();
  return y.item<float>() == 6.0f && sum(x.grad()).item<float>() == 12.0f ? 0 : 1;
}
