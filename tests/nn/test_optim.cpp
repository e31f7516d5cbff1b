// Optimizers, clipping and schedules. Numbers said to be PyTorch's are those of version 1.13.1 in float64.

#include <cmath>
#include <limits>
#include <memory>

#include "../../engine/autograd.h"
#include "../../engine/error.h"
#include "../../engine/ops.h"
#include "../../nn/optim.h"
#include "../../nn/schedule.h"
#include "../devices.h"

using namespace tandem;
using namespace tandem::optim;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor leaf(std::initializer_list<double> values, DType dtype = kFloat64) {
  Tensor t = tensor(values, dtype);
  t.requires_grad_();
  return t;
}

/// sum of c p^2 with c = 0.5, 1, 1.5.
void backward_of(const Tensor& p) { sum(tensor({0.5, 1.0, 1.5}, p.dtype()) * p * p).backward(); }

void check_values(const Tensor& t, const std::vector<double>& wanted, double tolerance = 1e-12) {
  const std::vector<double> got = t.to_vector();
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(got[i] == Approx(wanted[i]).epsilon(tolerance));
}

using Steps = std::vector<std::vector<double>>;

/// Three steps from (1, -2, 3), in both dtypes, and once more resumed after the first step.
template <class Opt, class Options>
void check_trajectory(const Options& options, const Steps& wanted) {
  for (const DType dtype : {kFloat64, kFloat32}) {
    const Tensor p = leaf({1, -2, 3}, dtype);
    Opt optimizer({p}, options);
    for (const std::vector<double>& values : wanted) {
      optimizer.zero_grad();
      backward_of(p);
      optimizer.step();
      check_values(p, values, dtype == kFloat64 ? 1e-12 : 1e-5);
    }
  }

  Tensor p = leaf({1, -2, 3});
  auto optimizer = std::make_unique<Opt>(std::vector{p}, options);
  for (const std::vector<double>& values : wanted) {
    optimizer->zero_grad();
    backward_of(p);
    optimizer->step();
    check_values(p, values);
    const OptimizerState state = optimizer->state();
    p = Tensor(p.detach().clone()).requires_grad_();
    Options other = options;
    other.lr = other.weight_decay = 7;
    optimizer = std::make_unique<Opt>(std::vector{p}, other);
    optimizer->load_state(state);
  }
}

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const ValueError& e) {
    return e.what();
  }
  return "no ValueError";
}

}  // namespace

// The trajectories are PyTorch's.

TEST_CASE("SGD", "[optim]") {
  ON_EVERY_DEVICE(on);
  check_trajectory<SGD, SGDOptions>({.lr = 0.1}, {{0.9, -1.6, 2.1}, {0.81, -1.28, 1.47}, {0.729, -1.024, 1.029}});
  check_trajectory<SGD, SGDOptions>({.lr = 0.1, .momentum = 0.9},
                                    {{0.9, -1.6, 2.1}, {0.72, -0.92, 0.66}, {0.486, -0.124, -0.834}});
  check_trajectory<SGD, SGDOptions>(
      {.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.01},
      {{0.899, -1.598, 2.097}, {0.7627005, -1.075601, 0.9687015}, {0.60151457475, -0.4973439995, -0.19255672575}});
  check_trajectory<SGD, SGDOptions>({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
                                    {{0.8081, -1.2362, 1.2843},
                                     {0.57121561, -0.43847522, -0.18162117},
                                     {0.321859673441, 0.223302188518, -1.049164205877}});
}

TEST_CASE("Adam", "[optim]") {
  ON_EVERY_DEVICE(on);
  check_trajectory<Adam, AdamOptions>({.lr = 0.1}, {{0.900000001, -1.90000000025, 2.90000000011111},
                                                    {0.800412229712338, -1.8001664861157, 2.80010270730287},
                                                    {0.701586274504415, -1.70062339204647, 2.70038152328172}});
  check_trajectory<Adam, AdamOptions>({.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1},
                                      {{0.900090826521344, -1.90002380385622, 2.90001075153209},
                                       {0.800773491065658, -1.80030019932723, 2.80018092238484},
                                       {0.70253449780256, -1.70101342320632, 2.70062241103228}});
}

TEST_CASE("AdamW", "[optim]") {
  ON_EVERY_DEVICE(on);
  check_trajectory<AdamW, AdamWOptions>({.lr = 0.1}, {{0.899000001, -1.89800000025, 2.89700000011111},
                                                      {0.798519028188779, -1.7962725886448, 2.79420929308099},
                                                      {0.698911184715693, -1.69494451438498, 2.69170364928079}});
  check_trajectory<AdamW, AdamWOptions>({.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1},
                                        {{0.8900999000999, -1.88002499375156, 2.87001110987668},
                                         {0.781969753852638, -1.76156262090732, 2.74153618678205},
                                         {0.676144823686929, -1.64482649954086, 2.61471063627158}});
}

TEST_CASE("parameters without gradient and frozen ones stay, tied ones move once", "[optim]") {
  ON_EVERY_DEVICE(on);
  const Tensor used = leaf({1}), unused = leaf({2});
  Tensor frozen = leaf({3});
  SGD optimizer({used, unused, frozen, used}, {.lr = 1, .weight_decay = 0.5});
  CHECK(optimizer.parameters().size() == 3);
  sum(used * 2 + frozen * 2).backward();
  frozen.requires_grad_(false);
  optimizer.step();
  check_values(used, {-1.5});
  check_values(unused, {2});
  check_values(frozen, {3});
  CHECK(optimizer.state().numbers.back() == std::pair<std::string, double>("0.step", 1));
}

TEST_CASE("zero_grad clears or fills", "[optim]") {
  ON_EVERY_DEVICE(on);
  const Tensor p = leaf({1, 2, 3});
  SGD optimizer({p});
  backward_of(p);
  const Tensor grad = p.grad();
  optimizer.zero_grad(false);
  CHECK(p.grad().is_same(grad));
  check_values(grad, {0, 0, 0});
  optimizer.zero_grad();
  CHECK(!p.grad().defined());
}

TEST_CASE("a transposed parameter and gradient", "[optim]") {
  ON_EVERY_DEVICE(on);
  Tensor p = tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, kFloat64).reshape({2, 3}).t().detach();
  p.requires_grad_();
  REQUIRE(!p.is_contiguous());
  SGD optimizer({p}, {.lr = 1, .momentum = 0.5});
  p.set_grad(tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, kFloat64).reshape({2, 3}).t());
  optimizer.step();
  check_values(p, {0, 0, 0, 0, 0, 0});
  optimizer.step();
  check_values(p, {-1.5, -6, -3, -7.5, -4.5, -9});
}

TEST_CASE("a step is an in-place change for the tape", "[optim]") {
  ON_EVERY_DEVICE(on);
  const Tensor p = leaf({1, 2, 3});
  SGD optimizer({p}, {.lr = 0.1});
  const Tensor loss = sum(p * p);
  const auto version = p.version();
  p.set_grad(ones({3}, kFloat64));
  optimizer.step();
  CHECK(p.version() == version + 1);
  CHECK_THROWS_AS(loss.backward(), AutogradError);
  CHECK(p.is_leaf());
  CHECK(p.requires_grad());
}

TEST_CASE("state follows a parameter to another dtype and device", "[optim]") {
  ON_EVERY_DEVICE(on);
  const Tensor p = leaf({1, -2, 3}, kFloat32);
  SGD optimizer({p}, {.lr = 0.1, .momentum = 0.9});
  backward_of(p);
  optimizer.step();
  p.set_data(p.detach().to(kFloat64).to(on(1)));
  p.set_grad(tensor({0.9, -3.2, 6.3}, kFloat64, on(1)));
  optimizer.step();
  check_values(p, {0.72, -0.92, 0.66}, 1e-6);
}

TEST_CASE("a failing step changes nothing", "[optim]") {
  ON_EVERY_DEVICE(on);
  const Tensor a = leaf({1}), b = leaf({2});
  Adam optimizer({a, b}, {.lr = 1});
  a.set_grad(ones({1}, kFloat64));
  b.set_grad(full({1}, kNan, kFloat64));
  optimizer.set_check_finite(true);
  CHECK(error_of([&] { optimizer.step(); }) == "Adam: the gradient of parameter 1 is not finite");
  check_values(a, {1});
  CHECK(optimizer.state().tensors.empty());
  b.set_grad(full({1}, -kInf, kFloat64));
  CHECK_THROWS_AS(optimizer.step(), ValueError);
  b.set_grad(ones({1}, kFloat64));
  optimizer.step();
  check_values(a, {1e-8}, 1e-6);
}

TEST_CASE("optimizers refuse what makes no sense", "[optim]") {
  ON_EVERY_DEVICE(on);
  const Tensor p = leaf({1});
  CHECK(error_of([&] { SGD({p}, {.lr = -0.1}); }) == "SGD: lr must be at least 0 and finite, got -0.1");
  CHECK(error_of([&] { SGD({p}, {.lr = kNan}); }) == "SGD: lr must be at least 0 and finite, got nan");
  CHECK(error_of([&] { SGD({p}, {.momentum = -1}); }) == "SGD: momentum must be at least 0 and finite, got -1");
  CHECK(error_of([&] { SGD({p}, {.nesterov = true}); }) == "SGD: nesterov needs a momentum above 0 and no dampening");
  CHECK(error_of([&] { Adam({p}, {.beta1 = 1}); }) == "Adam: beta1 must be in [0, 1), got 1");
  CHECK(error_of([&] { AdamW({p}, {.beta2 = kNan}); }) == "AdamW: beta2 must be in [0, 1), got nan");
  CHECK(error_of([&] { AdamW({p}, {.eps = -1}); }) == "AdamW: eps must be at least 0 and finite, got -1");
  CHECK(error_of([] { SGD(std::vector<Tensor>{}); }) == "SGD: there are no parameters");
  CHECK(error_of([&] { SGD({p, p * 2}); }) == "SGD: parameter 1 is not a floating leaf: float64 (1) on " + str(on(0)));
  CHECK_THROWS_AS(SGD({p, tensor({1})}), ValueError);
  CHECK_THROWS_AS(SGD({Tensor()}), ValueError);
  SGD optimizer({p});
  CHECK(optimizer.lr() == 1e-3);
  CHECK_THROWS_AS(optimizer.set_lr(kInf), ValueError);
  CHECK(optimizer.lr() == 1e-3);
}

TEST_CASE("load_state lists every difference and then changes nothing", "[optim]") {
  ON_EVERY_DEVICE(on);
  const Tensor p = leaf({1, -2, 3}), q = leaf({1});
  Adam optimizer({p, q}, {.lr = 0.1});
  backward_of(p);
  optimizer.step();
  const OptimizerState good = optimizer.state();

  OptimizerState bad = good;
  bad.type = "SGD";
  bad.numbers = {{"lr", 0.5}, {"beta1", 0.9}, {"beta2", 0.9}, {"eps", 0}, {"0.step", 3}, {"1.step", 0.5}, {"7", 1}};
  bad.tensors = {{"0.exp_avg", zeros({4}, kFloat64)}, {"0.velocity", zeros({3})}};
  CHECK(error_of([&] { optimizer.load_state(bad); }) ==
        "load_state: the state does not fit this Adam:\n"
        "  wanted the state of Adam, got that of SGD\n"
        "  weight_decay: missing\n"
        "  0.exp_avg: wanted float64 (3), got float64 (4) on " +
            str(on(0)) +
            "\n"
            "  0.exp_avg_sq: missing\n"
            "  1.step: wanted a count, got 0.5\n"
            "  7: unexpected\n"
            "  0.velocity: unexpected");
  bad = good;
  bad.numbers[1].second = 1.5;
  CHECK(error_of([&] { optimizer.load_state(bad); }) == "Adam: beta1 must be in [0, 1), got 1.5");

  CHECK(optimizer.lr() == 0.1);
  CHECK(optimizer.state().numbers == good.numbers);
  CHECK(equal(optimizer.state().tensors[0].second, good.tensors[0].second));

  // A loaded state is a copy.
  optimizer.load_state(good);
  optimizer.step();
  CHECK(!equal(optimizer.state().tensors[0].second, good.tensors[0].second));
}

TEST_CASE("clip_grad_norm_", "[optim]") {
  ON_EVERY_DEVICE(on);
  const Tensor a = leaf({0, 0}), b = leaf({0, 0}), none = leaf({1});
  a.set_grad(tensor({3.0, 0.0}, kFloat64));
  b.set_grad(tensor({4.0, 12.0}, kFloat64));
  CHECK(clip_grad_norm_({a, b, none, a}, 20) == Approx(13));
  check_values(b.grad(), {4, 12});
  // PyTorch's.
  CHECK(clip_grad_norm_({a, b, none, a}, 6.5) == Approx(13));
  check_values(a.grad(), {1.4999998846153935, 0});
  check_values(b.grad(), {1.999999846153858, 5.999999538461574});
  CHECK(!none.grad().defined());
  CHECK(clip_grad_norm_({none}, 1) == 0);

  b.set_grad(tensor({kInf, 1.0}, kFloat64));
  CHECK_THROWS_AS(clip_grad_norm_({a, b}, 1, true), ValueError);
  check_values(a.grad(), {1.4999998846153935, 0});
  CHECK(clip_grad_norm_({a, b}, 1) == kInf);
  CHECK_THROWS_AS(clip_grad_norm_({a, b}, -1), ValueError);
  CHECK_THROWS_AS(clip_grad_norm_({a, b}, kNan), ValueError);
}

TEST_CASE("clip_grad_value_", "[optim]") {
  ON_EVERY_DEVICE(on);
  const Tensor a = leaf({0, 0, 0});
  a.set_grad(tensor({3.0, -0.5, -9.0}, kFloat64));
  clip_grad_value_({a, leaf({1})}, 2);
  check_values(a.grad(), {2, -0.5, -2});
  CHECK_THROWS_AS(clip_grad_value_({a}, -2), ValueError);
}

TEST_CASE("schedules give PyTorch's rates", "[optim]") {
  ON_EVERY_DEVICE(on);
  const auto rates = [](auto make) {
    SGD optimizer({leaf({1})}, {.lr = 0.5});
    auto schedule = make(optimizer);
    std::vector<double> result{optimizer.lr()};
    for (int i = 0; i < 7; ++i) {
      schedule.step();
      result.push_back(optimizer.lr());
    }
    return tensor({0.0}, kFloat64) + from_vector(result, {8});
  };
  check_values(rates([](Optimizer& o) { return StepLR(o, 3); }), {0.5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.005, 0.005});
  check_values(rates([](Optimizer& o) { return CosineAnnealingLR(o, 4, 0.1); }),
               {0.5, 0.441421356237, 0.3, 0.158578643763, 0.1, 0.158578643763, 0.3, 0.441421356237}, 1e-11);
  check_values(rates([](Optimizer& o) { return LinearLR(o); }),
               {0.166666666667, 0.233333333333, 0.3, 0.366666666667, 0.433333333333, 0.5, 0.5, 0.5}, 1e-11);
  check_values(rates([](Optimizer& o) { return LambdaLR(o, [](std::int64_t e) { return 1.0 / (1.0 + double(e)); }); }),
               {0.5, 0.25, 0.5 / 3, 0.125, 0.1, 0.5 / 6, 0.5 / 7, 0.0625});
}

TEST_CASE("a schedule resumes", "[optim]") {
  ON_EVERY_DEVICE(on);
  SGD optimizer({leaf({1})}, {.lr = 1});
  StepLR schedule(optimizer, 2, 0.5);
  schedule.step();
  schedule.step();
  schedule.step();

  SGD other({leaf({1})}, {.lr = 1});
  StepLR resumed(other, 2, 0.5);
  other.load_state(optimizer.state());
  resumed.set_epoch(schedule.epoch());
  CHECK(other.lr() == 0.5);
  resumed.step();
  CHECK(other.lr() == 0.25);
  CHECK_THROWS_AS(resumed.set_epoch(-1), ValueError);
  CHECK_THROWS_AS(StepLR(other, 0), ValueError);
}
