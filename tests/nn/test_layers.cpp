// Layers and initial values. Numbers said to be PyTorch's are those of version 1.13.1 in float64.

#include <cmath>

#include "../../engine/autograd.h"
#include "../../engine/error.h"
#include "../../engine/ops.h"
#include "../../engine/random.h"
#include "../../nn/functional_layers.h"
#include "../../nn/init.h"
#include "../../nn/layers.h"
#include "../../nn/sequential.h"
#include "../devices.h"

using namespace tandem;

namespace {

void check_values(const Tensor& t, const std::vector<double>& wanted, double tolerance = 1e-9) {
  const std::vector<double> got = t.to_vector();
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(got[i] == Approx(wanted[i]).epsilon(tolerance).margin(1e-12));
}

Tensor counting(const Shape& shape, double start = 1) {
  return reshape(arange(start, start + static_cast<double>(shape.numel()), 1, kFloat64), shape);
}

/// Mean and variance of a tensor are those of a distribution within six standard errors.
void check_moments(const Tensor& t, double mean, double variance) {
  const auto n = static_cast<double>(t.numel());
  CHECK(std::abs(t.mean().item() - mean) < 6 * std::sqrt(variance / n));
  CHECK(std::abs(var(t.detach()).item() / variance - 1) < 6 * std::sqrt(2 / n));
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

TEST_CASE("Linear is x W^T + b", "[layers]") {
  ON_EVERY_DEVICE(on);
  nn::Linear layer{3, 2};
  layer.to(kFloat64);
  layer.load_state_dict({{"weight", counting({2, 3})}, {"bias", tensor({0.5, -1.0}, kFloat64)}});
  check_values(layer(counting({2, 3})), {14.5, 31, 32.5, 76});
  CHECK(layer(zeros({4, 5, 3}, kFloat64)).sizes() == Shape{4, 5, 2});

  nn::Linear plain{3, 2, {.bias = false}};
  CHECK(!plain.bias.defined());
  CHECK(plain.parameters().size() == 1);
  CHECK_THROWS_AS(plain(zeros({2, 4})), ShapeError);
}

TEST_CASE("Conv2d gives PyTorch's values", "[layers]") {
  ON_EVERY_DEVICE(on);
  nn::Conv2d layer{1, 2, 3, {.stride = 2, .padding = 1}};
  layer.to(kFloat64);
  layer.load_state_dict({{"weight", (counting({2, 1, 3, 3}, 0) - 8) / 10}, {"bias", tensor({0.5, -0.5}, kFloat64)}});
  check_values(layer(counting({2, 1, 4, 4}) / 8),
               {0.3125, -0.1625, -1.375, -3.475, 0.8875, 2.2125, 4.0375, 6.6625, -1.2875, -3.1625, -5.575, -10.675,
                6.4875, 10.0125, 10.6375, 15.6625});
  CHECK(nn::Conv2d{4, 6, {3, 1}, {.groups = 2}}.weight.sizes() == Shape{6, 2, 3, 1});
}

TEST_CASE("BatchNorm normalises and keeps running statistics", "[layers]") {
  ON_EVERY_DEVICE(on);
  Tensor x = counting({1, 2, 4, 4}) / 8;
  x = cat({x.narrow(1, 0, 1), x.narrow(1, 1, 1) * 2}, 1);
  x = cat({x, x * x});
  nn::BatchNorm2d norm{2};
  norm.to(kFloat64);

  // PyTorch's.
  Tensor y = norm(x);
  check_values(y.flatten().narrow(0, 0, 6), {-1.137311931229965, -1.0122467016789036, -0.8871814721278423,
                                             -0.7621162425767808, -0.6370510130257193, -0.511985783474658});
  check_values(norm.running_mean, {0.126171875, 2.2484375});
  check_values(norm.running_var, {1.0031171244959678, 38.953301411290326});
  CHECK(norm.num_batches_tracked.item() == 1);
  norm(x);
  check_values(norm.running_mean, {0.2397265625, 4.27203125});
  check_values(norm.running_var, {1.0059225365423388, 73.11127268145162});
  norm.eval();
  y = norm(x).flatten();
  check_values(y.narrow(0, y.numel() - 4, 4),
               {5.647668789978422, 6.078929434203281, 6.524809083317119, 6.985307737319935});
  CHECK(norm.num_batches_tracked.item() == 2);

  CHECK_THROWS_AS(norm(zeros({2, 2}, kFloat64)), ShapeError);
  CHECK_THROWS_AS(nn::BatchNorm1d{2}(zeros({2, 2, 2, 2})), ShapeError);
}

TEST_CASE("BatchNorm without momentum averages over all batches", "[layers]") {
  ON_EVERY_DEVICE(on);
  nn::BatchNorm1d norm{2, {.momentum = {}}};
  const Tensor x = tensor({1.0, 2.0, 3.0, 6.0}).reshape({2, 2});
  norm(x);
  norm(x * 2);
  check_values(norm.running_mean, {3, 6});
  check_values(norm.running_var, {5, 20});

  nn::BatchNorm1d untracked{2, {.affine = false, .track_running_stats = false}};
  CHECK(untracked.state_dict().empty());
  untracked.eval();
  check_values(untracked(x), {-1, -1, 1, 1}, 1e-4);
}

TEST_CASE("BatchNorm moves its statistics in place, off the tape", "[layers]") {
  ON_EVERY_DEVICE(on);
  nn::BatchNorm1d norm{2};
  const Tensor mean = norm.running_mean, batches = norm.num_batches_tracked;
  const Tensor x = randn({4, 2});
  norm(x).sum().backward();
  CHECK(mean.is_same(norm.running_mean));
  CHECK(batches.item() == 1);
  CHECK(!mean.requires_grad());
  CHECK(norm.bias.grad().to_vector() == std::vector<double>{4, 4});
}

TEST_CASE("LayerNorm gives PyTorch's values", "[layers]") {
  ON_EVERY_DEVICE(on);
  nn::LayerNorm norm{4};
  norm.to(kFloat64);
  const Tensor x = tensor({1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 8.0}, kFloat64).reshape({2, 4});
  check_values(norm(x), {-1.341635419968927, -0.4472118066563091, 0.4472118066563089, 1.3416354199689269,
                         -0.5773500286271639, -0.5773500286271639, -0.5773500286271639, 1.7320500858814918});
  CHECK(nn::LayerNorm{{2, 3}, {.bias = false}}.parameters().size() == 1);
  CHECK(nn::LayerNorm{4, {.elementwise_affine = false}}.parameters().empty());
}

TEST_CASE("Embedding looks rows up and does not train its padding", "[layers]") {
  ON_EVERY_DEVICE(on);
  nn::Embedding table{4, 2, {.padding_idx = -4}};
  check_values(table.weight.select(0, 0).detach(), {0, 0});
  const Tensor index = tensor({3, 0, 3}).reshape({3, 1});
  const Tensor rows = table(index);
  CHECK(rows.sizes() == Shape{3, 1, 2});
  CHECK(equal(rows.detach().select(0, 2).flatten(), table.weight.detach().select(0, 3)));
  rows.sum().backward();
  check_values(table.weight.grad(), {0, 0, 0, 0, 0, 0, 2, 2});
}

TEST_CASE("layers without parameters", "[layers]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = tensor({-1.0, 0.0, 2.0}, kFloat64);
  check_values(nn::ReLU{}(x), {0, 0, 2});
  check_values(nn::GELU{}(x), {-0.15865525393145702, 0, 1.9544997361036416});  // PyTorch's
  check_values(nn::SiLU{}(x), {-0.2689414213699951, 0, 1.7615941559557646});   // PyTorch's
  check_values(nn::Tanh{}(x), {std::tanh(-1.0), 0, std::tanh(2.0)});
  check_values(nn::Sigmoid{}(x), {1 / (1 + std::exp(1.0)), 0.5, 1 / (1 + std::exp(-2.0))});
  check_values(nn::Softmax{0}(x),
               {std::exp(-1.0) / (std::exp(-1.0) + 1 + std::exp(2.0)), 1 / (std::exp(-1.0) + 1 + std::exp(2.0)),
                std::exp(2.0) / (std::exp(-1.0) + 1 + std::exp(2.0))});
  check_values(nn::LogSoftmax{0}(x), log(softmax(x, 0)).to_vector());
  check_values(nn::Identity{}(x), {-1, 0, 2});

  const Tensor image = counting({1, 1, 4, 4});
  check_values(nn::MaxPool2d{2}(image), {6, 8, 14, 16});
  check_values(nn::MaxPool2d{{1, 2}, {.stride = {2, 2}}}(image), {2, 4, 10, 12});
  check_values(nn::AvgPool2d{2}(image), {3.5, 5.5, 11.5, 13.5});
  CHECK(nn::Flatten{}(zeros({2, 3, 4})).sizes() == Shape{2, 12});
  CHECK(nn::Flatten{0, 1}(zeros({2, 3, 4})).sizes() == Shape{6, 4});
}

TEST_CASE("losses", "[layers]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = tensor({1.0, 2.0, 4.0}, kFloat64), y = tensor({1.0, 0.0, 0.0}, kFloat64);
  check_values(nn::MSELoss{}(x, y), {20.0 / 3});
  check_values(nn::MSELoss{{.reduction = Reduction::Sum}}(x, y), {20});

  const Tensor logits = zeros({2, 4}, kFloat64);
  check_values(nn::CrossEntropyLoss{}(logits, tensor({1, 2})), {std::log(4.0)});
  check_values(nn::CrossEntropyLoss{{.reduction = Reduction::Sum, .ignore_index = 2}}(logits, tensor({1, 2})),
               {std::log(4.0)});
  check_values(nn::NLLLoss{}(logits + 3, tensor({1, 2})), {-3});
}

TEST_CASE("Dropout works in training only", "[layers]") {
  ON_EVERY_DEVICE(on);
  manual_seed(7);
  nn::Dropout drop{0.25};
  const Tensor x = ones({10000});
  const Tensor y = drop(x);
  const double kept = y.sum().item() * 0.75;
  CHECK(std::abs(kept - 7500) < 6 * std::sqrt(10000 * 0.25 * 0.75));
  for (const double v : y.to_vector()) CHECK((v == 0 || v == Approx(1 / 0.75)));
  drop.eval();
  CHECK(equal(drop(x), x));
}

TEST_CASE("Sequential chains", "[layers]") {
  ON_EVERY_DEVICE(on);
  nn::Sequential net{nn::Linear{4, 8}, nn::ReLU{}, nn::Linear{8, 2}};
  const Tensor x = randn({3, 4});
  CHECK(equal(net(x), net.get<2>()(relu(net.get<0>()(x)))));
  CHECK(nn::Sequential<>{}(x).is_same(x));
  // Only the first layer sees the arguments.
  nn::Sequential loss{nn::MSELoss{}, nn::Identity{}};
  CHECK(loss(x, x).item() == 0);
}

TEST_CASE("construction repeats with the seed", "[layers][init]") {
  ON_EVERY_DEVICE(on);
  manual_seed(3);
  const nn::Linear a{5, 4}, b{5, 4};
  manual_seed(3);
  const nn::Linear c{5, 4};
  CHECK(equal(a.weight, c.weight));
  CHECK(equal(a.bias, c.bias));
  CHECK(!equal(a.weight, b.weight));
}

TEST_CASE("layers start from PyTorch's distributions", "[layers][init]") {
  ON_EVERY_DEVICE(on);
  manual_seed(11);
  const nn::Linear linear{100, 300};
  check_moments(linear.weight, 0, 0.01 / 3);
  CHECK(abs(linear.weight.detach()).max().item() <= 0.1);
  CHECK(abs(linear.bias.detach()).max().item() <= 0.1);
  const nn::Conv2d conv{16, 32, {3, 5}, {.groups = 2}};
  check_moments(conv.weight, 0, 1.0 / (8 * 15) / 3);
  check_moments(nn::Embedding{200, 50}.weight, 0, 1);
}

TEST_CASE("initialisers", "[init]") {
  ON_EVERY_DEVICE(on);
  using namespace nn::init;
  manual_seed(5);
  Tensor w = empty({60, 20, 3, 3});
  w.requires_grad_();
  CHECK(fans(w).in == 180);
  CHECK(fans(w).out == 540);
  check_moments(kaiming_uniform_(w), 0, 2.0 / 180);
  check_moments(kaiming_uniform_(w, {.slope = std::sqrt(5.0)}), 0, 1.0 / 180 / 3);
  check_moments(kaiming_normal_(w, {.mode = FanMode::FanOut, .nonlinearity = Nonlinearity::ReLU}), 0, 2.0 / 540);
  check_moments(xavier_uniform_(w), 0, 2.0 / 720);
  check_moments(xavier_normal_(w, 3), 0, 9 * 2.0 / 720);
  check_moments(uniform_(w, 1, 3), 2, 4.0 / 12);
  check_moments(normal_(w, -1, 0.5), -1, 0.25);
  CHECK(constant_(w, 3).mean().item() == 3);
  CHECK(zeros_(w).sum().item() == 0);
  CHECK(ones_(w).mean().item() == 1);
  CHECK(w.is_leaf());
  Tensor v = empty({3});
  CHECK_THROWS_AS(xavier_normal_(v), ValueError);

  CHECK(calculate_gain(Nonlinearity::Linear) == 1);
  CHECK(calculate_gain(Nonlinearity::Tanh) == Approx(5.0 / 3));
  CHECK(calculate_gain(Nonlinearity::ReLU) == Approx(1.4142135623730951));
  CHECK(calculate_gain(Nonlinearity::LeakyReLU, std::sqrt(5.0)) == Approx(0.5773502691896257));
}

TEST_CASE("layers refuse sizes that make no sense", "[layers]") {
  ON_EVERY_DEVICE(on);
  CHECK(error_of([] { nn::Linear{0, 2}; }) == "Linear: in_features must be at least 1, got 0");
  CHECK(error_of([] {
          nn::Conv2d{3, 4, 3, {.groups = 2}};
        }) == "Conv2d: groups must divide in_channels and out_channels, got 2, 3 and 4");
  CHECK(error_of([] { nn::Conv2d{3, 4, {3, 0}}; }) == "Conv2d: kernel_size must be at least 1, got 0");
  CHECK(error_of([] { nn::Conv2d{3, 4, 3, {.padding = -1}}; }) == "Conv2d: padding must be at least 0, got -1");
  CHECK(error_of([] { nn::BatchNorm2d{4, {.momentum = 1.5}}; }) == "BatchNorm: momentum must be in [0, 1], got 1.5");
  CHECK(error_of([] { nn::LayerNorm{4, {.eps = -1}}; }) == "LayerNorm: eps must be at least 0, got -1");
  CHECK(error_of([] { nn::Dropout{std::nan("")}; }) == "Dropout: p must be in [0, 1], got nan");
  CHECK(error_of([] {
          nn::Embedding{4, 2, {.padding_idx = 4}};
        }) == "Embedding: padding_idx must be in [-4, 4), got 4");
  CHECK(error_of([] {
          nn::MaxPool2d{2, {.padding = 2}};
        }) == "pooling: padding must be from 0 to half of kernel_size (2, 2), got (2, 2)");
}
