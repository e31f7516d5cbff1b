// What a DataParallel cannot gather does not compile, with a message that says what to do: check_uncompilable.py.

#include <tandem/tandem.h>

#include <string>
#include <utility>

using namespace tandem;
using parallel::DataParallel;

struct Scale : nn::Module {
  nn::Parameter w{ones({1})};
  Tensor forward(const Tensor& x) { return x * w; }
  TANDEM_MODULE(Scale, w)
};

void wrong(DataParallel<Scale>& net, const Tensor& x) {
  // wanted: forward() of a DataParallel module must return tensors
  net.invoke([](Scale&, const Tensor&) { return 3; }, x);
  // wanted: this type, inside the result of forward(), cannot be gathered: it is no tensor
  net.invoke([](Scale& m, const Tensor& t) { return std::pair(m(t), std::string("text")); }, x);
  // wanted: WeightedMean is of floating numbers or tensors
  net.invoke([](Scale&, const Tensor&) { return parallel::WeightedMean<int>{3}; }, x);
  // wanted: Sum and WeightedMean are of tensors or numbers
  net.invoke([](Scale&, const Tensor&) { return parallel::Sum<std::string>{"text"}; }, x);
  // wanted: forward_loss takes the loss, the module's arguments, and the target
  net.forward_loss(nn::MSELoss{});
}
