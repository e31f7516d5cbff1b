// Uses a little of everything that a consumer links with: tensors, the tape, a module, two devices.

#include <tandem/tandem.h>
#include <cstdio>

int main() {
  using namespace tandem;
  nn::Linear model{3, 1, {.bias = false}};
  parallel::DataParallel net(model, {cpu(0), cpu(1)});
  sum(net(ones({4, 3}))).backward();
  const double gradient = sum(model.weight.grad()).item();
  std::printf("Tandem %s: %g\n", TANDEM_VERSION, gradient);
  return gradient == 12 ? 0 : 1;
}
