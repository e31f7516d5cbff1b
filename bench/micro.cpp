// What small things cost: one op, one training step. Times are minima over rounds that take turns, on one thread.

#include <fmt/format.h>

#include <tandem/tandem.h>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "baseline.h"

using namespace tandem;

namespace {

struct Mlp : nn::Module {
  nn::Linear fc1{784, 256}, fc2{256, 128}, fc3{128, 10};
  Tensor forward(const Tensor& x) { return fc3(relu(fc2(relu(fc1(x))))); }
  TANDEM_MODULE(Mlp, fc1, fc2, fc3)
};

struct Case {
  std::string name;
  std::function<void()> run;
  int calls = 1;  ///< per round
  double best_ns = 1e300;
};

void measure(std::vector<Case>& cases, int rounds) {
  for (int r = 0; r < rounds; ++r) {
    for (Case& c : cases) {
      const std::int64_t begin = now_ns();
      for (int i = 0; i < c.calls; ++i) c.run();
      c.best_ns = std::min(c.best_ns, static_cast<double>(now_ns() - begin) / c.calls);
    }
  }
}

}  // namespace

int main() {
  set_num_threads(1);
  const Tensor a = randn({64});
  const Tensor b = randn({64});
  const Tensor w = randn({64}).requires_grad_();
  Tensor out = empty({64});

  Mlp model;
  optim::SGD sgd(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  const Tensor x = randn({64, 784});
  const Tensor y = randint(0, 10, {64});

  std::vector<Case> cases{
      {"empty, 64 elements", [&] { empty({64}); }, 20000},
      {"add, 64 elements", [&] { add(a, b); }, 20000},
      {"add in place, 64 elements",
       [&] {
         const NoGradGuard no_grad;
         out.add_(b);
       },
       20000},
      {"add with grad, 64 elements", [&] { add(a, w); }, 20000},
      {"add with grad and backward", [&] { backward({add(a, w)}, {b}); }, 5000},
      {"view",
       [&] {
         a.view({8, 8});
       },
       20000},
      {"MLP step 784-256-128-10, batch 64",
       [&] {
         sgd.zero_grad();
         cross_entropy(model(x), y).backward();
         sgd.step();
       },
       20},
      {"MLP forward alone",
       [&] {
         const NoGradGuard no_grad;
         model(x);
       },
       20},
  };
  const std::size_t step = 6;
  if (auto products = mlp_products())
    cases.push_back({"its matrix products, plain cblas_sgemm", std::move(products), 20});
  measure(cases, 30);

  for (const Case& c : cases) {
    fmt::print("{:<42} {:>12}\n", c.name,
               c.best_ns < 1e4 ? fmt::format("{:.0f} ns", c.best_ns) : fmt::format("{:.1f} us", c.best_ns * 1e-3));
  }
  if (cases.size() > step + 2)
    fmt::print("{:<42} {:>12.2f}\n", "step over products", cases[step].best_ns / cases.back().best_ns);
}
