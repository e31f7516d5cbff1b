// How arguments are cut for the replicas: rows B1 to B18 of the behaviour table.

#include <atomic>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::DataParallel;
using parallel::PerReplica;
using parallel::scatter;
using parallel::scatter_tree;
using parallel::Split;

namespace {

using Sizes = std::vector<std::int64_t>;

/// What forward returns to tell how many rows each replica had.
PerReplica<std::int64_t> rows_of(const Tensor& x) { return {{x.size(0)}}; }

Tensor counting(std::int64_t n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0.0F);
  return from_vector(v, {n});
}

/// Tensors that are cut, and an unlisted field, which is not looked into.
struct Batch {
  Tensor x{};
  std::map<std::string, Tensor> extra{};
  std::string name{};
  Tensor unlisted{};
  TANDEM_TREE(Batch, x, extra, name)
};

struct Product : nn::Module {
  nn::Parameter w{tensor({3.0})};
  Tensor forward(const Tensor& x, const Tensor& y) { return x * y * w; }
  TANDEM_MODULE(Product, w)
};

/// Holds a tensor that no walk can see.
struct Opaque {
  Tensor hidden;
};

}  // namespace

TEST_CASE("B1: a tensor is cut by PyTorch's rule, so a device may get nothing", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  const auto run = [](Scale& m, const Tensor& x) { return std::pair(m(x), rows_of(x)); };
  const std::map<std::int64_t, Sizes> wanted{{4, {1, 1, 1, 1}}, {5, {2, 2, 1}}, {6, {2, 2, 2}},
                                             {7, {2, 2, 2, 1}}, {9, {3, 3, 3}}, {10, {3, 3, 3, 1}}};
  for (const auto& [n, sizes] : wanted) {
    const Tensor x = counting(n);
    const auto [out, rows] = net.invoke(run, x);
    CHECK(rows.values == sizes);
    CHECK(equal(out.detach(), x * 3));
  }
  CHECK(Split::ceil()(17, 8) == Sizes{3, 3, 3, 3, 3, 2});
  CHECK(Split::ceil()(49, 8) == Sizes(7, 7));
}

TEST_CASE("B2: fewer rows than devices are chunks of one", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  const auto where = [](Scale&, const Tensor& x) { return std::pair(rows_of(x), PerReplica<Device>{{x.device()}}); };
  const auto [rows, devices] = net.invoke(where, ones({3, 2}));
  CHECK(rows.values == Sizes{1, 1, 1});
  CHECK(devices.values == on.first(3));
}

TEST_CASE("B3: an empty batch is one empty chunk", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  const auto run = [](Scale& m, const Tensor& x) { return std::pair(m(x), rows_of(x)); };
  const auto [out, rows] = net.invoke(run, zeros({0, 2}));
  CHECK(rows.values == Sizes{0});
  CHECK(out.sizes() == Shape{0, 2});
  out.sum().backward();
  CHECK(model.w.grad().item() == 0);
}

TEST_CASE("B4: a 0-dim tensor goes to every replica, with the sum of its gradients", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(3));
  Tensor factor = scalar_tensor(10, kFloat32, on(1)).requires_grad_();
  const auto run = [](Scale& m, const Tensor& x, const Tensor& f) { return m(x) * f; };
  const Tensor out = net.invoke(run, tensor({1.0, 2.0, 4.0}), factor);
  CHECK(values(out.detach()) == std::vector<double>{30, 60, 120});
  out.sum().backward();
  REQUIRE(factor.grad().defined());
  CHECK(factor.grad().dim() == 0);
  CHECK(factor.grad().device() == on(1));
  CHECK(factor.grad().item() == 21);
  check_error<ShapeError>([&] { scatter(factor, on.first(2)); }, {"0-dim", "broadcast"});
}

TEST_CASE("B5: a negative dim counts from the end of each tensor", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2), {.dim = -1});
  const Tensor x = integers({2, 3}, 1), y = integers({4, 2, 3}, 2);
  const auto run = [](Scale&, const Tensor& a, const Tensor& b) {
    return std::pair(a + b, PerReplica<Shape>{{a.sizes(), b.sizes()}});
  };
  const auto [out, shapes] = net.invoke(run, x, y);
  CHECK(equal(out, x + y));
  CHECK(shapes.values == std::vector<Shape>{{2, 2}, {4, 2, 2}, {2, 1}, {4, 2, 1}});
}

TEST_CASE("B5: a tensor without the dimension is refused by name", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  const auto run = [](Scale& m, const Tensor& a, const Batch&) { return m(a); };
  for (const std::int64_t dim : {1, -2}) {
    DataParallel net(model, on.first(2), {.dim = dim});
    check_error<IndexError>(
        [&] {
          net.invoke(run, ones({4, 4}), Batch{.x = ones({4})});
        },
        {"args[1].x", "(4)", "dimension " + std::to_string(dim)});
  }
}

TEST_CASE("B6: a chunk on the source's own device is a view of the caller's tensor, others are copies", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const auto add = [](Scale&, Tensor& x) { return x.add_(10); };
  const Tensor x = tensor({1.0, 2.0, 3.0, 4.0});
  CHECK(values(net.invoke(add, x)) == std::vector<double>{11, 12, 13, 14});
  CHECK(values(x) == std::vector<double>{11, 12, 3, 4});
  const Tensor elsewhere = tensor({1.0, 2.0}).to(on(3));
  CHECK(values(net.invoke(add, elsewhere)) == std::vector<double>{11, 12});
  CHECK(values(elsewhere) == std::vector<double>{1, 2});
}

TEST_CASE("B7: arguments come from the host and from any device, with any strides and dtypes", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(3));
  const auto run = [](Scale&, const Tensor& x, const Tensor& i) {
    return std::pair(PerReplica<Device>{{x.device(), i.device()}}, std::pair(x, i));
  };
  const Tensor want = integers({5, 4}, 1), index = integers({5}, 2, kInt64);
  const std::vector<Device> twice{on(0), on(0), on(1), on(1), on(2), on(2)};
  for (const Device home : {cpu(), on(0), on(3)}) {
    const Tensor strided = want.t().contiguous().to(home).t();
    REQUIRE_FALSE(strided.is_contiguous());
    const auto [devices, out] = net.invoke(run, strided, index.to(home));
    CHECK(devices.values == twice);
    CHECK(equal(out.first, want));
    CHECK(out.second.dtype() == kInt64);
    CHECK(equal(out.second, index));
  }
}

TEST_CASE("B8, upstream-comm-scatter_namedtuple: tuples, lists, maps and structs are walked, and keep their types",
          "[contract]") {
  ON_EVERY_DEVICE(on);
  using Tree = std::tuple<std::vector<Tensor>, Batch, std::pair<Tensor, std::optional<Tensor>>>;
  const Tensor x = tensor({1.0, 2.0, 3.0});
  const Tree tree{{x, x * 10}, {.x = x * 20, .extra = {{"a", x * 30}}, .name = "n"}, {x * 40, x * 50}};
  const auto [trees, plan] = scatter_tree(tree, on.first(2));
  static_assert(std::is_same_v<decltype(trees), const std::vector<Tree>>);
  REQUIRE(trees.size() == 2);
  CHECK(plan.rows == Sizes{2, 1});
  const auto& [list, batch, pair] = trees[1];
  REQUIRE(list.size() == 2);
  CHECK(list[0].device() == on(1));
  CHECK(values(list[0]) == std::vector<double>{3});
  CHECK(values(list[1]) == std::vector<double>{30});
  CHECK(values(batch.x) == std::vector<double>{60});
  REQUIRE(batch.extra.size() == 1);
  CHECK(values(batch.extra.at("a")) == std::vector<double>{90});
  CHECK(batch.name == "n");
  CHECK(values(pair.first) == std::vector<double>{120});
  REQUIRE(pair.second.has_value());
  CHECK(values(*pair.second) == std::vector<double>{150});
}

TEST_CASE("B9: empty containers stay empty in every replica, and decide nothing", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(3));
  using Map = std::map<std::string, Tensor>;
  const auto run = [](Scale& m, const std::vector<Tensor>& list, const Map& map, const std::optional<Tensor>& none,
                      const Tensor& x) {
    return std::pair(m(x), PerReplica<bool>{{list.empty() && map.empty() && !none}});
  };
  const auto [out, empty] =
      net.invoke(run, std::vector<Tensor>{}, Map{}, std::optional<Tensor>{}, tensor({1.0, 2.0, 4.0}));
  CHECK(values(out) == std::vector<double>{3, 6, 12});
  CHECK(empty.values == std::vector<bool>{true, true, true});
}

TEST_CASE("B10: other values are copied to every replica; tensors inside them are neither cut nor moved",
          "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  const Opaque opaque{ones({5})};
  int shared = 0;
  const auto run = [&](Scale&, const Tensor&, const std::string& text, int* pointer, const Opaque& o, const Batch& b) {
    return std::pair(PerReplica<bool>{{text == "flag" && pointer == &shared && o.hidden.is_same(opaque.hidden)}},
                     PerReplica<Device>{{o.hidden.device(), b.unlisted.device()}});
  };
  const auto [same, devices] =
      net.invoke(run, ones({2}), std::string("flag"), &shared, opaque, Batch{.x = ones({2}), .unlisted = ones({7})});
  CHECK(same.values == std::vector<bool>{true, true});
  CHECK(devices.values == std::vector<Device>(4, on(0)));
}

TEST_CASE("B11: tensors of different batch size are refused, naming both, before a replica runs", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(2));
  std::atomic<bool> ran = false;
  const auto run = [&](Scale& m, const std::vector<Tensor>& list, const Batch&) {
    ran = true;
    return m(list[0]);
  };
  check_error<ShapeError>(
      [&] {
        net.invoke(run, std::vector{ones({5}), ones({1})}, Batch{});
      },
      {"args[0][0] has 5", "args[0][1] has 1"});
  check_error<ShapeError>(
      [&] {
        net.invoke(run, std::vector{ones({5})}, Batch{.extra = {{"mask", ones({3, 5})}}});
      },
      {"args[0][0] has 5", "args[1].extra[\"mask\"] has 3 (float32 (3, 5)"});
  Product product;
  check_error<ShapeError>([&] { parallel::data_parallel(product, on.first(2), {}, ones({2}), ones({3})); },
                          {"args[0] has 2", "args[1] has 3"});
  CHECK_FALSE(ran.load());
}

TEST_CASE("B12: without a tensor to be cut one replica runs, once", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(3));
  const auto run = [](Scale& m, int n, const Tensor& scalar) {
    return std::pair(m.w * n + scalar, PerReplica<Device>{{parallel::current_replica().device}});
  };
  const auto [out, devices] = net.invoke(run, 4, scalar_tensor(1));
  CHECK(values(out.detach()) == std::vector<double>{13});
  CHECK(devices.values == on.first(1));
}

TEST_CASE("B13: flags next to a short batch make no further replicas", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  const auto run = [](Scale& m, const Tensor& x, bool flag, const Tensor& scalar) {
    return std::pair(m(x) + scalar, PerReplica<bool>{{flag}});
  };
  for (const std::int64_t n : {1, 3, 5}) {
    const Tensor x = counting(n);
    const auto [out, flags] = net.invoke(run, x, true, scalar_tensor(1));
    CHECK(equal(out.detach(), x * 3 + 1));
    CHECK(flags.values == std::vector<bool>(n == 1 ? 1 : 3, true));
  }
}

TEST_CASE("B14: tensors in any argument have the same number of chunks", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  DataParallel net(model, on.first(4));
  const auto run = [](Scale&, const Tensor& x, const Batch& b, const std::vector<Tensor>& list) {
    return std::pair(x + b.extra.at("y") + list[0], rows_of(x));
  };
  const Tensor x = counting(5);
  const auto [out, rows] = net.invoke(run, x, Batch{.extra = {{"y", x * 10}}}, std::vector{x * 100});
  CHECK(rows.values == Sizes{2, 2, 1});
  CHECK(equal(out, x * 111));
  check_error<ShapeError>(
      [&] {
        net.invoke(run, x, Batch{.extra = {{"y", counting(3)}}}, std::vector{x});
      },
      {"args[0] has 5", "args[1].extra[\"y\"] has 3"});
}

TEST_CASE("B15: a call without arguments runs once, on the first device", "[contract]") {
  ON_EVERY_DEVICE(on);
  Scale model;
  model.to(on(1));
  DataParallel net(model, {on(1), on(0)});
  std::vector<Device> devices;
  net.invoke([&](Scale&) { devices.push_back(parallel::current_replica().device); });
  CHECK(devices == std::vector<Device>{on(1)});
  const Tensor out = net.invoke([](Scale& m) { return m.w * 2; });
  CHECK(values(out.detach()) == std::vector<double>{6});
  out.sum().backward();
  CHECK(model.w.grad().item() == 2);
}

TEST_CASE("B16: scatter gives a list of tensors, scatter_tree a list of trees and the plan", "[contract]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = counting(5);
  const std::vector<Tensor> chunks = scatter(x, on.first(4));
  REQUIRE(chunks.size() == 3);
  CHECK(values(chunks[2]) == std::vector<double>{4});
  const auto [trees, plan] = scatter_tree(x, on.first(4));
  static_assert(std::is_same_v<decltype(trees), const std::vector<Tensor>>);
  REQUIRE(trees.size() == 3);
  CHECK(equal(trees[1], chunks[1]));
  CHECK(plan.devices == on.first(3));
  CHECK(plan.rows == Sizes{2, 2, 1});
}

TEST_CASE("B18: scatter's gradient is put together where the input was, the host too, and absent parts are zero",
          "[contract]") {
  ON_EVERY_DEVICE(on);
  for (const Device home : {cpu(), on(3)}) {
    Tensor x = integers({2, 5}).to(home).requires_grad_();
    const auto chunks = scatter(x, on.first(3), 1);
    REQUIRE(chunks.size() == 3);
    backward({(chunks[0] * 2).sum(), (chunks[2] * 7).sum()});
    CHECK(x.grad().device() == home);
    CHECK(values(x.grad()) == std::vector<double>{2, 2, 0, 0, 7, 2, 2, 0, 0, 7});
  }
}

TEST_CASE("B18: scatter can be differentiated twice", "[contract]") {
  ON_EVERY_DEVICE(on);
  for (const Device home : {cpu(), on(1)}) {
    Tensor x = integers({5, 2}).to(home).requires_grad_();
    std::vector<Tensor> cubes;
    for (const Tensor& t : scatter(x, on.first(2))) cubes.push_back((t * t * t).sum());
    const Tensor first = grad({parallel::gather(cubes, on(0)).sum()}, {x}, {}, {.create_graph = true})[0];
    CHECK(equal(first.detach(), x.detach() * x.detach() * 3));
    first.sum().backward();
    CHECK(x.grad().device() == home);
    CHECK(equal(x.grad(), x.detach() * 6));
  }
}
