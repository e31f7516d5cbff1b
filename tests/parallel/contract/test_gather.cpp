// How results of replicas become one: rows E1 to E11 of the behaviour table.

#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "../helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::DataParallel;
using parallel::gather;

namespace {

std::size_t replica() { return parallel::current_replica().index; }

struct Sums {
  Tensor sum;
  std::vector<Tensor> parts;
  TANDEM_TREE(Sums, sum, parts)
};

}  // namespace

TEST_CASE("E1: tensors are concatenated in the order of replicas", "[contract]") {
  ON_EVERY_DEVICE(on);
  const Tensor a = integers({2, 3}, 1);
  const Tensor b = integers({2, 1}, 2);
  const Tensor out = gather(std::vector{a.to(on(2)), b.to(on(1))}, on(3), -1);
  CHECK(out.device() == on(3));
  CHECK(equal(out.to(on(0)), cat({a, b}, 1)));
}

TEST_CASE("E1: tensors that do not fit are refused with path, index and both shapes", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const auto widths = [](Scale&, const Tensor& x) {
    return std::tuple(x, zeros({1, static_cast<std::int64_t>(replica()) + 2}, kFloat32, x.device()));
  };
  check_error<ShapeError>([&] { net.invoke(widths, ones({2})); }, {"out[1]", "tensor 1", "(1, 3)", "(1, 2)"});
  const auto dims = [](Scale&, const Tensor& x) { return replica() == 0 ? x : x.reshape({1, 1}); };
  check_error<ShapeError>([&] { net.invoke(dims, ones({2})); }, {"out", "(1, 1)"});
}

TEST_CASE("E2: 0-dim results become a vector with one element per chunk, not per device", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  const auto total = [](Scale& m, const Tensor& x) { return m(x).sum(); };
  const Tensor out = net.invoke(total, tensor({1.0, 2.0, 4.0, 8.0, 16.0}));
  CHECK(values(out) == std::vector<double>{9, 36, 48});
  out.backward(tensor({1.0, 10.0, 100.0}));
  CHECK(model.w.grad().item() == 3 + 120 + 1600);
}

TEST_CASE("E3: 0-dim results become a vector for every dim", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  const auto total = [](Scale& m, const Tensor& x) { return m(x).sum(); };
  const Tensor x = from_vector(std::vector<float>{1, 2, 3, 4}, {2, 2});
  for (const std::int64_t dim : {1, -1}) {
    DataParallel net(model, on.first(2), {.dim = dim});
    CHECK(values(net.invoke(total, x)) == std::vector<double>{12, 18});
  }
  const auto mixed = [](Scale& m, const Tensor& t) { return replica() == 0 ? m(t).sum() : m(t); };
  DataParallel net(model, on.first(2));
  check_error<ShapeError>([&] { net.invoke(mixed, ones({2})); }, {"out", "0-dim"});
}

TEST_CASE("E4: replicas may return tensors of the host", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2), {.output_device = on(1)});
  const Tensor out = net.invoke([](Scale& m, const Tensor& x) { return m(x).to(cpu()); }, tensor({1.0, 2.0, 3.0}));
  CHECK(out.device() == on(1));
  CHECK(values(out) == std::vector<double>{3, 6, 9});
  out.sum().backward();
  CHECK(model.w.grad().item() == 6);
  CHECK(model.w.grad().device() == on(0));
}

TEST_CASE("E5: the output device may be the host", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  for (const int k : {1, 2}) {
    DataParallel net(model, on.first(k), {.output_device = cpu()});
    const Tensor out = net(tensor({1.0, 2.0, 3.0}));
    CHECK(out.device() == cpu());
    CHECK(values(out) == std::vector<double>{3, 6, 9});
    CHECK(values(parallel::data_parallel(model, on.first(k), {.output_device = cpu()}, ones({2}))) ==
          std::vector<double>{3, 3});
  }
}

TEST_CASE("E6: maps are gathered key by key", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  using Map = std::map<std::string, Tensor>;
  const Map out = net.invoke([](Scale& m, const Tensor& x) { return Map{{"b", m(x)}, {"a", x}}; }, tensor({1.0, 2.0}));
  REQUIRE(out.size() == 2);
  CHECK(values(out.at("a")) == std::vector<double>{1, 2});
  CHECK(values(out.at("b")) == std::vector<double>{3, 6});
}

TEST_CASE("E6: maps of other sizes or keys are refused", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  using Map = std::map<std::string, Tensor>;
  const auto other_key = [](Scale&, const Tensor& x) { return Map{{replica() == 0 ? "a" : "z", x}}; };
  check_error<ValueError>([&] { net.invoke(other_key, ones({2})); }, {"out"});
  const auto other_size = [](Scale&, const Tensor& x) { return replica() == 0 ? Map{{"a", x}} : Map{}; };
  check_error<ValueError>([&] { net.invoke(other_size, ones({2})); }, {"out"});
}

TEST_CASE("E7, upstream-comm-gather_namedtuple: lists, tuples and structs are gathered element by element",
          "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const Sums out = net.invoke(
      [](Scale& m, const Tensor& x) {
        return Sums{.sum = m(x), .parts = {x, x * 2}};
      },
      tensor({1.0, 2.0}));
  CHECK(values(out.sum) == std::vector<double>{3, 6});
  REQUIRE(out.parts.size() == 2);
  CHECK(values(out.parts[1]) == std::vector<double>{2, 4});
}

TEST_CASE("E7: lists of unequal length are refused, not truncated", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const auto uneven = [](Scale&, const Tensor& x) {
    return Sums{.sum = x, .parts = std::vector<Tensor>(replica() + 1, x)};
  };
  check_error<ValueError>([&] { net.invoke(uneven, ones({2})); }, {"out.parts", "1", "2"});
}

TEST_CASE("E8: absent results stay absent, if all replicas agree", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  using Maybe = std::pair<std::optional<Tensor>, Tensor>;
  const Maybe out = net.invoke([](Scale&, const Tensor&) { return Maybe{}; }, ones({2}));
  CHECK_FALSE(out.first.has_value());
  CHECK_FALSE(out.second.defined());
  const auto empty_optional = [](Scale&, const Tensor& x) {
    return replica() == 0 ? Maybe{std::nullopt, x} : Maybe{x, x};
  };
  check_error<ValueError>([&] { net.invoke(empty_optional, ones({2})); }, {"out.first"});
  const auto undefined = [](Scale&, const Tensor& x) { return replica() == 0 ? Maybe{x, {}} : Maybe{x, x}; };
  check_error<ValueError>([&] { net.invoke(undefined, ones({2})); }, {"out.second", "replica 1"});
}

TEST_CASE("E9: numbers and text come out by a stated rule", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const auto rows = [](Scale&, const Tensor& x) {
    return std::tuple(parallel::Sum<std::int64_t>{x.size(0)}, parallel::PerReplica<bool>{{replica() == 1}},
                      parallel::First<std::string>{"replica " + std::to_string(replica())});
  };
  const auto [count, second, name] = net.invoke(rows, ones({3}));
  CHECK(count.value == 3);
  CHECK(second.values == std::vector<bool>{false, true});
  CHECK(name.value == "replica 0");
}

TEST_CASE("E10: gather's gradient is cut as its parts were, and can be differentiated", "[contract]") {
  ON_EVERY_DEVICE(on);
  Tensor a = integers({1, 2}, 1).requires_grad_();
  Tensor b = integers({2, 2}, 2).to(on(1)).requires_grad_();
  const Tensor out = gather(std::vector{a, b}, on(2));
  const auto first = grad({(out * out * out).sum()}, {a, b}, {}, {.create_graph = true});
  CHECK(first[1].device() == on(1));
  CHECK(equal(first[0].detach(), a.detach() * a.detach() * 3));
  CHECK(equal(first[1].detach(), b.detach() * b.detach() * 3));
  backward({first[0].sum(), first[1].sum()});
  CHECK(equal(a.grad(), a.detach() * 6));
  CHECK(equal(b.grad(), b.detach() * 6));
}

TEST_CASE("E11: nothing is divided: a loss of the gathered result has one device's gradient", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  const Tensor x = tensor({1.0, 2.0, 3.0, 4.0, 10.0});
  DataParallel net(model, on.first(2));
  net(x).mean().backward();
  CHECK(model.w.grad().item() == 4);
}

TEST_CASE("E11: means of uneven chunks are weighted as asked", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  const Tensor x = tensor({1.0, 2.0, 6.0});  // chunks of means 1.5 and 6
  DataParallel net(model, on.first(2));
  const auto mean = [](Scale& m, const Tensor& t) { return m(t).mean(); };
  net.invoke(mean, x).mean().backward();
  CHECK(model.w.grad().item() == 3.75);
  model.zero_grad();
  const auto weighted = [](Scale& m, const Tensor& t) { return parallel::WeightedMean<>{m(t).mean()}; };
  net.invoke(weighted, x).value.backward();
  CHECK(model.w.grad().item() == Approx(3));
}
