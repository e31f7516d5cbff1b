// Modules: what follows from the list of fields.

#include <sstream>

#include "../../engine/autograd.h"
#include "../../engine/error.h"
#include "../../engine/ops.h"
#include "../../engine/random.h"
#include "../../nn/functional_layers.h"
#include "../../nn/layers.h"
#include "../../nn/optim.h"
#include "../../nn/sequential.h"
#include "../devices.h"

using namespace tandem;

namespace {

struct Mlp : nn::Module {
  nn::Linear fc1{3, 4}, fc2{4, 2};
  Tensor forward(const Tensor& x) { return fc2(relu(fc1(x))); }
  TANDEM_MODULE(Mlp, fc1, fc2)
};

/// One field of every sort.
struct Zoo : nn::Module {
  nn::Parameter scale = ones({2});
  nn::Parameter absent;
  nn::Buffer count = zeros({}, kInt64);
  std::vector<nn::Linear> stack{nn::Linear{1, 1}, nn::Linear{1, 1, {.bias = false}}};
  std::optional<nn::Linear> maybe;
  std::array<nn::Parameter, 2> pair{ones({1}), ones({1})};
  std::map<std::string, nn::Linear> named{{"b", nn::Linear{1, 1}}, {"a", nn::Linear{1, 1}}};
  TANDEM_MODULE(Zoo, scale, absent, count, stack, maybe, pair, named)
};

/// Encoder and decoder share one weight.
struct Tied : nn::Module {
  nn::Linear in{3, 3, {.bias = false}}, out{3, 3};
  Tied() { out.weight = in.weight; }
  Tensor forward(const Tensor& x) { return out(in(x)); }
  TANDEM_MODULE(Tied, in, out)
};

/// Takes and gives more than a tensor.
struct Pieces : nn::Module {
  std::pair<Tensor, int> forward(const std::vector<Tensor>& xs, int n) { return {xs[0] + xs[1], n + 1}; }
  TANDEM_MODULE(Pieces)
};
struct Nothing : nn::Module {
  int calls = 0;
  void forward() { ++calls; }
  TANDEM_MODULE(Nothing)
};
struct Reference : nn::Module {
  Tensor& forward(Tensor& x) { return x; }
  TANDEM_MODULE(Reference)
};

std::vector<std::string> names(const nn::NamedTensors& tensors) {
  std::vector<std::string> result;
  for (const auto& [name, t] : tensors) result.push_back(name);
  return result;
}

std::string error_of(const auto& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("fields are found by name, in order", "[module]") {
  ON_EVERY_DEVICE(on);
  Zoo zoo;
  CHECK(names(zoo.named_parameters()) == Names{"scale", "stack.0.weight", "stack.0.bias", "stack.1.weight", "pair.0",
                                               "pair.1", "named.a.weight", "named.a.bias", "named.b.weight",
                                               "named.b.bias"});
  CHECK(names(zoo.named_buffers()) == Names{"count"});
  CHECK(zoo.state_dict().size() == 11);
  zoo.maybe.emplace(2, 1);
  CHECK(names(zoo.named_parameters())[4] == "maybe.weight");
  CHECK(zoo.num_parameters() == 2 + 2 + 1 + 3 + 2 + 4);

  Names modules;
  for (const auto& [name, m] : zoo.named_modules()) modules.push_back(name + ":" + m->type_name());
  CHECK(modules ==
        Names{":Zoo", "stack.0:Linear", "stack.1:Linear", "maybe:Linear", "named.a:Linear", "named.b:Linear"});

  nn::Sequential net{nn::Linear{4, 8}, nn::ReLU{}, nn::Sequential{nn::Linear{8, 2, {.bias = false}}}};
  CHECK(names(net.state_dict()) == Names{"0.weight", "0.bias", "2.0.weight"});
}

TEST_CASE("a parameter is a leaf that requires a gradient", "[module]") {
  ON_EVERY_DEVICE(on);
  const nn::Parameter p = ones({2});
  CHECK(p.requires_grad());
  Tensor x = ones({2});
  x.requires_grad_();
  const nn::Parameter q = x * 2;
  CHECK(q.is_leaf());
  CHECK(q.to_vector() == std::vector<double>{2, 2});
  CHECK(!nn::Parameter(ones({2}), false).requires_grad());

  Tied net;
  net.in.weight = ones({3, 3}).t();
  net.to(kFloat64);
  CHECK(net.in.weight.dtype() == kFloat64);
}

TEST_CASE("train, eval, freezing and zero_grad reach everything", "[module]") {
  ON_EVERY_DEVICE(on);
  Zoo zoo;
  zoo.eval();
  for (const auto& [name, m] : zoo.named_modules()) CHECK(!m->training);
  zoo.train();
  CHECK(zoo.named.at("a").training);
  zoo.requires_grad_(false);
  CHECK(!zoo.pair[1].requires_grad());
  zoo.requires_grad_();
  sum(zoo.scale * 3).backward();
  CHECK(zoo.scale.grad().to_vector() == std::vector<double>{3, 3});
  zoo.zero_grad();
  CHECK(!zoo.scale.grad().defined());

  std::string order;
  Mlp mlp;
  mlp.apply([&](nn::Module& m) { order += std::string(m.type_name()) + " "; });
  CHECK(order == "Linear Linear Mlp ");
}

TEST_CASE("a copy shares tensors, a deep copy has its own", "[module]") {
  ON_EVERY_DEVICE(on);
  Tied net;
  Tied copy = net;
  CHECK(copy.in.weight.is_same(net.in.weight));

  sum(net(ones({1, 3}))).backward();
  Tied deep = nn::deepcopy(net);
  CHECK(!deep.in.weight.is_same(net.in.weight));
  CHECK(deep.in.weight.is_same(deep.out.weight));
  CHECK(deep.in.weight.is_leaf());
  CHECK(deep.in.weight.requires_grad());
  CHECK(!deep.in.weight.grad().defined());
  CHECK(equal(deep.in.weight, net.in.weight));
  {
    const NoGradGuard no_grad;
    deep.in.weight.fill_(0);
  }
  CHECK(!equal(deep.in.weight, net.in.weight));
}

TEST_CASE("ties are listed once, saved under each name, and last", "[module]") {
  ON_EVERY_DEVICE(on);
  Tied net;
  CHECK(names(net.named_parameters()) == Names{"in.weight", "out.bias"});
  CHECK(names(net.state_dict()) == Names{"in.weight", "out.weight", "out.bias"});
  const Tensor before = net.in.weight;
  optim::SGD optimizer(net.parameters(), {.lr = 0.5});

  net.to(kFloat64);
  CHECK(net.in.weight.is_same(before));
  CHECK(net.out.weight.is_same(before));
  CHECK(before.dtype() == kFloat64);

  net.to(on(1));
  CHECK(before.device() == on(1));
  CHECK(net.out.weight.is_same(before));

  const std::vector<double> old = before.to_vector();
  sum(net(ones({1, 3}, kFloat64, on(1)))).backward();
  const std::vector<double> grad = before.grad().to_vector();
  optimizer.step();
  for (std::size_t i = 0; i < old.size(); ++i) CHECK(before.to_vector()[i] == Approx(old[i] - 0.5 * grad[i]));
}

TEST_CASE("to converts floating tensors and their gradients only", "[module]") {
  ON_EVERY_DEVICE(on);
  nn::BatchNorm1d norm{2};
  norm(tensor({1.0, 2.0, 3.0, 6.0}).reshape({2, 2})).sum().backward();
  norm.to(kFloat64);
  CHECK(norm.weight.dtype() == kFloat64);
  CHECK(norm.weight.grad().dtype() == kFloat64);
  CHECK(norm.running_mean.dtype() == kFloat64);
  CHECK(norm.num_batches_tracked.dtype() == kInt64);
  CHECK(norm.num_batches_tracked.item() == 1);
  CHECK_THROWS_AS(norm.to(kInt64), DTypeError);
}

TEST_CASE("a state dict goes round", "[module]") {
  ON_EVERY_DEVICE(on);
  manual_seed(1);
  nn::Sequential a{nn::Linear{3, 4}, nn::BatchNorm1d{4}};
  nn::Sequential b{nn::Linear{3, 4}, nn::BatchNorm1d{4}};
  a(randn({5, 3}));
  const auto version = b.get<0>().weight.version();
  b.load_state_dict(a.state_dict());
  for (std::size_t i = 0; i < a.state_dict().size(); ++i) {
    CHECK(equal(a.state_dict()[i].second, b.state_dict()[i].second));
  }
  CHECK(b.get<1>().num_batches_tracked.item() == 1);
  CHECK(b.get<0>().weight.requires_grad());
  CHECK(b.get<0>().weight.version() > version);
  CHECK(!b.get<0>().weight.is_same(a.get<0>().weight));
  b.load_state_dict(b.state_dict());

  // A module's own values may change places.
  nn::Sequential twins{nn::Linear{1, 1, {.bias = false}}, nn::Linear{1, 1, {.bias = false}}};
  const double first = twins.get<0>().weight.item(), second = twins.get<1>().weight.item();
  const nn::StateDict state = twins.state_dict();
  twins.load_state_dict({{"0.weight", state[1].second}, {"1.weight", state[0].second}});
  CHECK(twins.get<0>().weight.item() == second);
  CHECK(twins.get<1>().weight.item() == first);

  b.to(on(1));
  b.load_state_dict(a.state_dict());
  CHECK(b.get<0>().weight.device() == on(1));
  CHECK(equal(b.get<0>().weight.to(on(0)), a.get<0>().weight));
}

TEST_CASE("load_state_dict lists every difference and then changes nothing", "[module]") {
  ON_EVERY_DEVICE(on);
  Mlp net;
  const std::vector<double> before = net.fc1.weight.to_vector();
  const nn::StateDict bad{{"fc1.weight", zeros({4, 3})},         {"fc1.bias", zeros({5})},
                          {"fc2.weight", zeros({2, 4}, kInt64)}, {"fc3.weight", zeros({1})},
                          {"fc1.weight", ones({4, 3})},          {"fc9.bias", Tensor()}};
  CHECK(error_of([&] { net.load_state_dict(bad); }) ==
        "load_state_dict: the state does not fit Mlp:\n"
        "  fc1.weight: given twice\n"
        "  fc1.bias: wanted float32 (4), got float32 (5) on " +
            str(on(0)) +
            "\n"
            "  fc2.weight: wanted float32 (2, 4), got int64 (2, 4) on " +
            str(on(0)) +
            "\n"
            "  fc2.bias: missing\n"
            "  fc3.weight: unexpected\n"
            "  fc9.bias: unexpected");
  CHECK(net.fc1.weight.to_vector() == before);

  const nn::LoadReport report = net.load_state_dict({{"fc1.bias", ones({4})}, {"extra", ones({1})}}, false);
  CHECK(report.missing == Names{"fc1.weight", "fc2.weight", "fc2.bias"});
  CHECK(report.unexpected == Names{"extra"});
  CHECK(net.fc1.bias.to_vector() == std::vector<double>{1, 1, 1, 1});
  CHECK(net.fc1.weight.to_vector() == before);
  CHECK_THROWS_AS(net.load_state_dict({{"fc1.bias", ones({5})}}, false), ValueError);
}

TEST_CASE("rebinding makes a replica of a copy", "[module]") {
  ON_EVERY_DEVICE(on);
  Tied net;
  Tied replica = net;
  int calls = 0;
  nn::rebind_tensors(replica, [&](const Tensor& t) {
    ++calls;
    return t * 2;
  });
  CHECK(calls == 2);
  CHECK(replica.in.weight.is_same(replica.out.weight));
  CHECK(!replica.in.weight.is_leaf());
  CHECK(replica.parameters()[0].is_same(replica.in.weight));
  CHECK_THROWS_AS(replica.to(kFloat64), AutogradError);

  sum(replica(ones({1, 3}))).backward();
  CHECK(net.in.weight.grad().defined());
  CHECK(net.out.bias.grad().to_vector() == std::vector<double>{2, 2, 2});
}

TEST_CASE("hooks see arguments and results", "[module]") {
  ON_EVERY_DEVICE(on);
  Mlp net;
  const Tensor x = ones({2, 3});
  std::string log;
  Tensor seen;
  HookHandle pre = net.register_forward_pre_hook([&](nn::Module& m, const std::vector<Tensor>& in) {
    log += std::string("pre ") + m.type_name() + (in.at(0).is_same(x) ? " x" : " ?") + "; ";
  });
  HookHandle post =
      net.register_forward_hook([&](nn::Module&, const std::vector<Tensor>& in, std::vector<Tensor>& out) {
        log += "post " + std::to_string(in.size()) + std::to_string(out.size()) + "; ";
        seen = out[0];
      });
  net.fc1.register_forward_hook([&](nn::Module&, const auto&, std::vector<Tensor>&) { log += "fc1; "; });
  Tensor y = net(x);
  CHECK(log == "pre Mlp x; fc1; post 11; ");
  CHECK(seen.is_same(y));

  // A copy runs them too, on itself; a hook of its own is its own.
  log.clear();
  Mlp copy = net;
  copy.register_forward_hook([&](nn::Module&, const auto&, std::vector<Tensor>&) { log += "copy; "; });
  copy(x);
  CHECK(log == "pre Mlp x; fc1; post 11; copy; ");
  log.clear();
  net(x);
  CHECK(log == "pre Mlp x; fc1; post 11; ");

  log.clear();
  pre.remove();
  post.remove();
  post.remove();
  copy(x);
  CHECK(log == "fc1; copy; ");

  net.register_forward_hook([](nn::Module&, const auto&, std::vector<Tensor>& out) { out[0] = out[0] * 0; });
  CHECK(net(x).to_vector() == std::vector<double>{0, 0, 0, 0});
  net.register_forward_hook([](nn::Module&, const auto&, std::vector<Tensor>& out) { out.clear(); });
  CHECK_THROWS_AS(net(x), ValueError);
}

TEST_CASE("forward may take and return anything", "[module]") {
  ON_EVERY_DEVICE(on);
  const auto count = [](int& n) {
    return [&n](nn::Module&, const std::vector<Tensor>& in, std::vector<Tensor>& out) {
      n = static_cast<int>(10 * in.size() + out.size());
    };
  };
  int tensors = -1;
  Pieces pieces;
  pieces.register_forward_hook(count(tensors));
  const auto [total, n] = pieces(std::vector{ones({1}), ones({1})}, 4);
  CHECK(total.item() == 2);
  CHECK(n == 5);
  CHECK(tensors == 21);

  Nothing nothing;
  nothing();
  nothing.register_forward_hook(count(tensors));
  nothing();
  CHECK(nothing.calls == 2);
  CHECK(tensors == 0);

  Reference reference;
  reference.register_forward_hook(count(tensors));
  Tensor x = ones({1});
  Tensor& same = reference(x);
  CHECK(&same == &x);
  STATIC_REQUIRE(std::is_same_v<decltype(reference(x)), Tensor&>);
}

TEST_CASE("modules print as PyTorch's", "[module]") {
  ON_EVERY_DEVICE(on);
  nn::Sequential net{nn::Sequential{nn::Conv2d{1, 8, 3, {.padding = 1, .bias = false}}, nn::BatchNorm2d{8}, nn::ReLU{},
                                    nn::MaxPool2d{2}},
                     nn::Dropout{0.25}, nn::Linear{128, 10}};
  std::ostringstream out;
  out << net;
  CHECK(out.str() == R"(Sequential(
  (0): Sequential(
    (0): Conv2d(1, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    (1): BatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
    (2): ReLU()
    (3): MaxPool2d(kernel_size=2, stride=2, padding=0)
  )
  (1): Dropout(p=0.25, inplace=False)
  (2): Linear(in_features=128, out_features=10, bias=True)
))");
  CHECK(str(nn::LayerNorm{4}) == "LayerNorm((4,), eps=1e-05, elementwise_affine=True)");
  CHECK(str(nn::LayerNorm{{2, 3}}) == "LayerNorm((2, 3), eps=1e-05, elementwise_affine=True)");
  CHECK(str(nn::Embedding{5, 3, {.padding_idx = -1}}) == "Embedding(5, 3, padding_idx=4)");
  CHECK(str(nn::AvgPool2d{{3, 2}, {.stride = 1}}) == "AvgPool2d(kernel_size=(3, 2), stride=1, padding=0)");
  CHECK(str(nn::Conv2d{4, 4, {3, 5}, {.stride = {1, 2}, .padding = {1, 2}, .dilation = 2, .groups = 2}}) ==
        "Conv2d(4, 4, kernel_size=(3, 5), stride=(1, 2), padding=(1, 2), dilation=(2, 2), groups=2)");
  CHECK(str(nn::BatchNorm1d{3, {.momentum = {}, .affine = false}}) ==
        "BatchNorm1d(3, eps=1e-05, momentum=None, affine=False, track_running_stats=True)");
  CHECK(str(nn::Flatten{}) == "Flatten(start_dim=1, end_dim=-1)");
  CHECK(str(nn::Softmax{-1}) == "Softmax(dim=-1)");
  CHECK(str(nn::Dropout{1}) == "Dropout(p=1.0, inplace=False)");
}
