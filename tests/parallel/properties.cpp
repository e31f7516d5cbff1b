// Random module trees on random devices: a DataParallel gives what one device gives. Integer-valued data must agree in
// every bit, other data to 1e-6.

#include <tandem/tandem.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../catch.h"
#include "../devices.h"

using namespace tandem;
using namespace tandem::test;
using parallel::DataParallel;
using parallel::Split;

namespace {

constexpr std::int64_t kFeatures = 3;

/// The choices of one case.
class Choices {
 public:
  explicit Choices(std::uint64_t seed, bool exact) : random_(seed), exact_(exact) {}
  bool exact() const { return exact_; }
  std::int64_t between(std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random_);
  }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }
  /// Integers from -2 to 2 if exact, else normal numbers.
  Tensor values(const Shape& shape) {
    std::vector<double> all(static_cast<std::size_t>(shape.numel()));
    std::normal_distribution<double> normal;
    for (double& v : all) v = exact_ ? static_cast<double>(between(-2, 2)) : normal(random_);
    return from_vector(all, shape);
  }

 private:
  std::mt19937_64 random_;
  bool exact_;
};

/// A random tree. Every block maps (..., features) to the same shape and treats all rows alike.
struct Block : nn::Module {
  enum class Kind { Affine, Linear, Relu, Sequence, Residual, Twice, Smooth };
  Kind kind{};
  nn::Parameter weight, bias, unused;
  nn::Buffer scale;
  std::vector<Block> children;

  Block() = default;
  Block(Choices& choose, int depth) {
    const std::int64_t last = static_cast<std::int64_t>(choose.exact() ? Kind::Twice : Kind::Smooth);
    kind = static_cast<Kind>(depth == 0 ? choose.between(0, 2) : choose.between(0, last));
    const auto parameter = [&](const Shape& shape) {
      nn::Parameter p{choose.values(shape)};
      if (choose.chance(0.2)) p.requires_grad_(false);
      return p;
    };
    switch (kind) {
      case Kind::Affine:
        weight = parameter(choose.chance(0.5) ? Shape{} : Shape{kFeatures});
        bias = parameter({1});
        break;
      case Kind::Linear: weight = parameter({kFeatures, kFeatures}); break;
      case Kind::Relu: break;
      case Kind::Smooth: weight = parameter({kFeatures}); break;
      case Kind::Twice: children.emplace_back(choose, depth - 1); break;
      case Kind::Sequence:
      case Kind::Residual:
        for (std::int64_t n = choose.between(1, 3); n > 0; --n) children.emplace_back(choose, depth - 1);
        if (choose.chance(0.3)) tie(children.front(), children.back());
        break;
    }
    if (choose.chance(0.3)) unused = parameter({2});
    if (choose.chance(0.3)) scale = nn::Buffer{choose.values({kFeatures})};
  }

  Tensor forward(const Tensor& x) {
    Tensor y = x;
    switch (kind) {
      case Kind::Affine: y = x * weight + bias; break;
      case Kind::Linear: y = matmul(x, weight.t()); break;
      case Kind::Relu: y = relu(x); break;
      case Kind::Smooth: y = tanh(layer_norm(x, {kFeatures}, weight, {})); break;
      case Kind::Sequence:
        for (Block& b : children) y = b.forward(y);
        break;
      case Kind::Residual:
        for (Block& b : children) y = y + b.forward(x);
        break;
      case Kind::Twice: y = children[0].forward(children[0].forward(x)); break;
    }
    return scale.defined() ? y * scale : y;
  }
  TANDEM_MODULE(Block, weight, bias, unused, scale, children)

 private:
  /// One parameter in two places, where the blocks have the same shape.
  static void tie(Block& a, Block& b) {
    if (a.weight.defined() && b.weight.defined() && a.weight.sizes() == b.weight.sizes()) b.weight = a.weight;
  }
};

/// Batches along `dim`, features along the last dimension that is not the batch's.
struct Net : nn::Module {
  Block body;
  std::int64_t dim = 0;
  std::map<std::string, Tensor> forward(const Tensor& x, const std::pair<Tensor, double>& extra) {
    const bool turn = dim == x.dim() - 1;
    const auto& [shift, factor] = extra;
    Tensor y = body(turn ? transpose(x, 0, -1) : x);
    if (turn) y = transpose(y, 0, -1);
    return {{"y", y * factor + shift}, {"total", y.sum()}};
  }
  TANDEM_MODULE(Net, body)
};

struct Outcome {
  Tensor y, total;
  std::vector<Tensor> gradients;  ///< of the inputs, then of the parameters
};

/// `net` is a module or a DataParallel over it.
template <class F>
Outcome outcome(F& net, nn::Module& module, const Tensor& x, const Tensor& shift, const Tensor& target) {
  module.zero_grad();
  Tensor input = x.detach().clone().requires_grad_();
  Tensor added = shift.detach().clone().requires_grad_();
  auto out = net(input, std::pair(added, 2.0));
  ((out.at("y") * target).sum() + out.at("total").sum() * 3).backward();
  Outcome result{out.at("y").detach(), out.at("total").sum().detach(), {input.grad(), added.grad()}};
  for (const Tensor& p : module.parameters()) result.gradients.push_back(p.grad());
  return result;
}

/// `tolerance` is relative, and absolute for what cancels; 0 means the same bits.
void check_same(const Tensor& got, const Tensor& wanted, double tolerance) {
  REQUIRE(got.defined() == wanted.defined());
  if (!got.defined()) return;
  CHECK(got.sizes() == wanted.sizes());
  CHECK(got.device() == wanted.device());
  if (tolerance == 0) {
    CHECK(got.to_vector() == wanted.to_vector());
  } else {
    CHECK(allclose(got, wanted, 1e-6, tolerance));
  }
}

double largest(const std::vector<Tensor>& tensors) {
  double found = 0;
  for (const Tensor& t : tensors) {
    if (t.defined() && t.numel() > 0) found = std::max(found, abs(t).max().item());
  }
  return found;
}

void check_same(const Outcome& got, const Outcome& wanted, bool exact) {
  check_same(got.y, wanted.y, exact ? 0 : 1e-6 * largest({wanted.y}));
  check_same(got.total, wanted.total, exact ? 0 : 1e-6 * largest({wanted.y}));
  REQUIRE(got.gradients.size() == wanted.gradients.size());
  const double tolerance = exact ? 0 : 1e-6 * largest(wanted.gradients);
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    INFO("gradient " << i);
    check_same(got.gradients[i], wanted.gradients[i], tolerance);
  }
}

Split random_split(Choices& choose, std::int64_t rows, std::int64_t devices) {
  switch (choose.between(0, 2)) {
    case 0: return Split::ceil();
    case 1: return Split::balanced();
    default: break;
  }
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = rows; left > 0;) {
    const bool last = std::ssize(sizes) + 1 == devices;
    sizes.push_back(last ? left : choose.between(1, left));
    left -= sizes.back();
  }
  return rows > 0 ? Split::sizes(sizes) : Split::ceil();
}

void check_case(const Devices& on, std::uint64_t seed, bool exact) {
  INFO("seed " << seed);
  Choices choose(seed, exact);
  const std::int64_t count = choose.between(1, std::min(8, device_count(on(0).type)));
  std::vector<Device> devices = on.first(static_cast<int>(count));
  for (std::size_t i = devices.size() - 1; i > 0; --i) {
    std::swap(devices[i], devices[static_cast<std::size_t>(choose.between(0, static_cast<std::int64_t>(i)))]);
  }
  Net model;
  {
    const DefaultDeviceGuard home(devices[0]);
    model.body = Block(choose, 3);
  }
  const std::int64_t rank = choose.between(2, 4);
  Shape shape;
  for (std::int64_t i = 0; i < rank; ++i) shape.push_back(choose.between(1, 3));
  model.dim = choose.between(0, rank - 1);
  const std::int64_t rows = choose.chance(0.05) ? 0 : choose.between(1, 20);
  shape[static_cast<int>(model.dim == rank - 1 ? 0 : rank - 1)] = kFeatures;
  shape[static_cast<int>(model.dim)] = rows;
  const Tensor x = choose.values(shape).to(devices[0]);
  const Tensor shift = choose.values(shape).to(devices[0]);
  const Tensor target = choose.values(shape).to(devices[0]);

  const Outcome wanted = outcome(model, model, x, shift, target);
  parallel::DataParallelOptions options;
  options.dim = choose.chance(0.5) ? model.dim : model.dim - rank;
  options.split = random_split(choose, rows, count);
  options.transport = static_cast<parallel::TransportKind>(choose.between(0, 2));
  options.bucket_bytes = choose.between(1, 200);
  DataParallel net(model, devices, options);
  INFO(net.explain(x, std::pair(shift, 2.0)));
  check_same(outcome(net, model, x, shift, target), wanted, exact);
  check_same(outcome(net, model, x, shift, target), wanted, exact);  // from the replicas that are there

  const auto once = [&](const Tensor& a, const std::pair<Tensor, double>& b) {
    return parallel::data_parallel(model, devices, options, a, b);
  };
  check_same(outcome(once, model, x, shift, target), wanted, exact);

  const parallel::SynchronizedParameters group = net.synchronize();
  for (const auto& own : group.on_devices()) {
    for (const Tensor& p : own) p.zero_grad();
  }
  check_same(outcome(net, model, x, shift, target), wanted, exact);
  const auto& home = group.on_devices()[0];
  for (std::size_t i = 1; i < devices.size(); ++i) {
    for (std::size_t j = 0; j < home.size(); ++j) {
      const Tensor gradient = group.on_devices()[i][j].grad();
      REQUIRE(gradient.defined() == home[j].grad().defined());
      if (gradient.defined()) CHECK(gradient.to_vector() == home[j].grad().to_vector());
    }
  }
}

}  // namespace

TEST_CASE("random module trees: integer-valued data agree with one device in every bit") {
  if (device_count(DeviceType::CPU) < 8) set_cpu_device_count(8);
  ON_EVERY_DEVICE(on);
  const std::uint64_t cases = on.are_cpus() ? 300 : 60;
  for (std::uint64_t seed = 0; seed < cases; ++seed) check_case(on, seed, true);
}

TEST_CASE("random module trees: other data agree with one device to 1e-6") {
  if (device_count(DeviceType::CPU) < 8) set_cpu_device_count(8);
  ON_EVERY_DEVICE(on);
  const std::uint64_t cases = on.are_cpus() ? 300 : 60;
  for (std::uint64_t seed = 0; seed < cases; ++seed) check_case(on, 1000 + seed, false);
}
