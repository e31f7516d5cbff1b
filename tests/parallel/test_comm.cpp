// Tensors between devices: values, places, aliasing, gradients, errors.

#include "helpers.h"

using namespace tandem;
using namespace tandem::test;
using parallel::broadcast;
using parallel::broadcast_coalesced;
using parallel::gather;
using parallel::reduce_add;
using parallel::reduce_add_coalesced;
using parallel::scatter;
using parallel::Split;

TEST_CASE("chunks follow PyTorch's rule", "[comm]") {
  using V = std::vector<std::int64_t>;
  CHECK(Split::ceil()(9, 4) == V{3, 3, 3});
  CHECK(Split::ceil()(5, 4) == V{2, 2, 1});
  CHECK(Split::ceil()(9, 8) == V{2, 2, 2, 2, 1});
  CHECK(Split::ceil()(36, 7) == V{6, 6, 6, 6, 6, 6});
  CHECK(Split::ceil()(17, 8) == V{3, 3, 3, 3, 3, 2});
  CHECK(Split::ceil()(49, 8) == V{7, 7, 7, 7, 7, 7, 7});
  CHECK(Split::ceil()(3, 4) == V{1, 1, 1});
  CHECK(Split::ceil()(0, 4) == V{0});
}

TEST_CASE("scatter cuts along a dimension and keeps a view on the source's device", "[comm]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = integers({5, 4});
  for (const std::int64_t dim : {0, 1, -1, -2}) {
    const auto chunks = scatter(x, on.first(2), dim);
    REQUIRE(chunks.size() == 2);
    CHECK(chunks[0].device() == on(0));
    CHECK(chunks[1].device() == on(1));
    CHECK(chunks[0].data_ptr() == x.data_ptr());
    const std::int64_t n = chunks[0].size(dim);
    CHECK(n == (x.size(dim) + 1) / 2);
    CHECK(equal(chunks[0], x.narrow(dim, 0, n)));
    CHECK(equal(chunks[1].to(on(0)), x.narrow(dim, n, x.size(dim) - n)));
  }
}

TEST_CASE("scatter's gradient is put together again, and absent parts count as zero", "[comm]") {
  ON_EVERY_DEVICE(on);
  Tensor x = integers({4, 4}).requires_grad_();
  const auto halves = scatter(x, on.first(2));
  halves[0].backward(full({2, 4}, 2, kFloat64));
  CHECK(equal(x.grad(), cat({full({2, 4}, 2, kFloat64), zeros({2, 4}, kFloat64)})));
}

TEST_CASE("gather puts tensors from anywhere on one device", "[comm]") {
  ON_EVERY_DEVICE(on);
  const Tensor a = integers({2, 3}, 1);
  const Tensor b = integers({1, 3}, 2).to(on(1));
  const Tensor out = gather(std::vector{a, b}, on(2));
  CHECK(out.device() == on(2));
  CHECK(equal(out.to(on(0)), cat({a, b.to(on(0))})));
  const Tensor scalars = gather(std::vector{scalar_tensor(1.5), scalar_tensor(2.5, kFloat32, on(1))}, on(0), 1);
  CHECK(scalars.sizes() == Shape{2});
  CHECK(values(scalars) == std::vector<double>{1.5, 2.5});
}

TEST_CASE("gather names what does not fit", "[comm]") {
  ON_EVERY_DEVICE(on);
  try {
    gather(std::vector{zeros({2, 3}), zeros({2, 4}, kFloat32, on(1))}, on(0));
    FAIL("no error");
  } catch (const ShapeError& e) {
    const std::string text = e.what();
    CHECK(text.find("tensor 1") != std::string::npos);
    CHECK(text.find("(2, 4)") != std::string::npos);
    CHECK(text.find("(2, 3)") != std::string::npos);
  }
  CHECK_THROWS_AS(gather(std::vector<Tensor>{}, on(0)), ValueError);
  CHECK_THROWS_AS(gather(std::vector{zeros({1}), zeros({})}, on(0)), ShapeError);
}

TEST_CASE("broadcast aliases at home and copies elsewhere; its gradient is the sum in device order", "[comm]") {
  ON_EVERY_DEVICE(on);
  Tensor x = tensor({1.0, 2.0}, kFloat64).requires_grad_();
  const auto copies = broadcast(x, on.first(3));
  CHECK(copies[0].data_ptr() == x.data_ptr());
  for (int i = 0; i < 3; ++i) {
    const Tensor& c = copies[static_cast<std::size_t>(i)];
    CHECK(c.device() == on(i));
    CHECK_FALSE(c.is_leaf());
    CHECK(values(c) == std::vector<double>{1, 2});
  }
  (copies[0] * 2).sum().backward({}, true);
  CHECK(values(x.grad()) == std::vector<double>{2, 2});
  x.zero_grad();
  backward({(copies[0] * 2).sum(), (copies[1] * 10).sum(), (copies[2] * 100).sum()});
  CHECK(values(x.grad()) == std::vector<double>{112, 112});
}

TEST_CASE("a tensor that no device used gets no gradient", "[comm]") {
  ON_EVERY_DEVICE(on);
  Tensor a = tensor({1.0}).requires_grad_();
  Tensor b = tensor({1.0}).requires_grad_();
  const std::vector<Tensor> both{a, b};
  const auto copies = broadcast_coalesced(both, on.first(2));
  backward({copies[1][0].sum()});
  CHECK(values(a.grad()) == std::vector<double>{1});
  CHECK_FALSE(b.grad().defined());
}

TEST_CASE("tensors of different homes are broadcast together, and each gets its gradient there", "[comm]") {
  ON_EVERY_DEVICE(on);
  Tensor a = tensor({1.0}).requires_grad_();
  Tensor b = tensor({2.0}).to(on(1)).requires_grad_();
  const auto copies = broadcast_coalesced(std::vector{a, b}, on.first(3));
  backward({(copies[0][0] * 3).sum(), (copies[0][1] * 5).sum(), (copies[2][0] * 7).sum(), (copies[2][1] * 9).sum()});
  CHECK(a.grad().item() == 10);
  CHECK(b.grad().item() == 14);
  CHECK(b.grad().device() == on(1));
}

TEST_CASE("integer and frozen tensors are broadcast without a place on the tape", "[comm]") {
  ON_EVERY_DEVICE(on);
  const std::vector<Tensor> mixed{tensor({1, 2, 3}), ones({2}), ones({}, kFloat64).requires_grad_()};
  const auto copies = broadcast_coalesced(mixed, on.first(2));
  CHECK(equal(copies[1][0].to(on(0)), mixed[0]));
  CHECK_FALSE(copies[1][0].requires_grad());
  CHECK_FALSE(copies[1][1].requires_grad());
  CHECK(copies[1][2].requires_grad());
}

TEST_CASE("reduce_add sums in device order, leaves out absent tensors, and checks shapes", "[comm]") {
  ON_EVERY_DEVICE(on);
  const std::vector<std::vector<Tensor>> rows{
      {ones({2}), Tensor(), Tensor()},
      {full({2}, 2, kFloat32, on(1)), full({3}, 5, kFloat32, on(1)), Tensor()},
  };
  const auto sums = reduce_add_coalesced(rows, on(0));
  CHECK(values(sums[0]) == std::vector<double>{3, 3});
  CHECK(values(sums[1]) == std::vector<double>{5, 5, 5});
  CHECK_FALSE(sums[2].defined());
  CHECK(sums[1].device() == on(0));
  CHECK_THROWS_AS(reduce_add(std::vector{ones({2}), ones({3}, kFloat32, on(1))}, on(0)), ShapeError);
}

TEST_CASE("the parts can be differentiated twice", "[comm]") {
  ON_EVERY_DEVICE(on);
  const auto leaf = [](const Shape& s, int v, Device d = get_default_device()) {
    return (integers(s, v) / 4).to(d).requires_grad_();
  };
  const auto squares = [](std::vector<Tensor> parts) {
    for (Tensor& t : parts) t = t * t;
    return parts;
  };
  SECTION("scatter") {
    const TensorFunction f = [&](const std::vector<Tensor>& x) { return squares(scatter(x[0], on.first(2))); };
    CHECK(gradcheck(f, {leaf({3, 2}, 1)}).error == "");
    CHECK(gradgradcheck(f, {leaf({3, 2}, 1)}).error == "");
  }
  SECTION("gather") {
    const TensorFunction f = [&](const std::vector<Tensor>& x) { return squares({gather(x, on(0), 1)}); };
    const std::vector<Tensor> in{leaf({2, 2}, 1), leaf({2, 1}, 2, on(1))};
    CHECK(gradcheck(f, in).error == "");
    CHECK(gradgradcheck(f, in).error == "");
  }
  SECTION("broadcast") {
    const TensorFunction f = [&](const std::vector<Tensor>& x) { return squares(broadcast(x[0], on.first(3))); };
    CHECK(gradcheck(f, {leaf({3}, 1)}).error == "");
    CHECK(gradgradcheck(f, {leaf({3}, 1)}).error == "");
  }
  SECTION("reduce_add") {
    const TensorFunction f = [&](const std::vector<Tensor>& x) { return squares({reduce_add(x, on(0))}); };
    const std::vector<Tensor> in{leaf({3}, 1), leaf({3}, 2, on(1))};
    CHECK(gradcheck(f, in).error == "");
    CHECK(gradgradcheck(f, in).error == "");
  }
}

TEST_CASE("every transport gives the same values", "[comm]") {
  ON_EVERY_DEVICE(on);
  Mlp model;
  model.to(kFloat64);
  set_integers(model);
  const Tensor x = integers({9, 6}, 2);
  std::vector<std::vector<double>> results;
  using Kind = parallel::TransportKind;
  for (const Kind kind : {Kind::Auto, Kind::Copies, Kind::Host}) {
    model.zero_grad();
    parallel::DataParallel net(model, on.first(3), {.transport = kind});
    if (kind == Kind::Host) CHECK(net.transport().name() == std::string("host"));
    if (kind == Kind::Copies) CHECK(net.transport().name() == std::string("copies"));
    CHECK(net.ledger().table().find(std::string("transport: ") + net.transport().name()) != std::string::npos);
    const Tensor out = net(x);
    sum(out * out).backward();
    results.push_back(values(out.detach()));
    for (const Tensor& p : model.parameters()) results.push_back(values(p.grad()));
  }
  const std::size_t third = results.size() / 3;
  for (std::size_t i = third; i < results.size(); ++i) CHECK(results[i] == results[i % third]);
}
