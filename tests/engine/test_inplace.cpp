// In-place changes on the tape: of tensors, of views, of what others view.

#include "../../engine/gradcheck.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("inplace: a change of a view reaches its base, its siblings and the operand", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2, 3, 4});
  const Tensor w = leaf({3}, {});
  const Tensor y = x * 2;
  Tensor v = y.narrow(0, 0, 2);
  const Tensor s = y.narrow(0, 1, 2);
  v.mul_(w);
  CHECK(has_values(y, {6, 12, 6, 8}));
  CHECK(has_values(s, {12, 6}));
  // With e = d loss / d y = (1, 2 + 5, 3 + 6, 4): dx = 2 e, times w where v was; dw = e0 2 + e1 4.
  ((y * f64({1, 2, 3, 4})).sum() + (s * f64({5, 6})).sum()).backward();
  CHECK(has_values(x.grad(), {6, 42, 18, 8}));
  CHECK(has_values(w.grad(), {30}));
}

TEST_CASE("inplace: a change of the base reaches a view made before", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2, 3, 4});
  Tensor y = x * 2;
  const Tensor v = y.narrow(0, 1, 2);
  const Tensor of_v = v.narrow(0, 0, 1);
  y.mul_(3);
  CHECK(has_values(v, {12, 18}));
  v.sum().backward({}, true);
  CHECK(has_values(x.grad(), {0, 6, 6, 0}));
  of_v.sum().backward();
  CHECK(has_values(x.grad(), {0, 12, 6, 0}));
}

TEST_CASE("inplace: a buffer becomes part of the tape when something recorded is written into it", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({5, 6});
  Tensor buffer = zeros({4}, kFloat64);
  const Tensor before = buffer.narrow(0, 2, 2);
  buffer.narrow(0, 1, 2).copy_(x);
  CHECK(buffer.requires_grad());
  CHECK_FALSE(buffer.is_leaf());
  CHECK(before.requires_grad());
  CHECK(has_values(buffer, {0, 5, 6, 0}));
  (buffer * f64({1, 2, 3, 4})).sum().backward({}, true);
  CHECK(has_values(x.grad(), {2, 3}));
  before.sum().backward();
  CHECK(has_values(x.grad(), {2, 4}));

  // Overwriting everything by a constant cuts the history off.
  buffer.fill_(7);
  x.zero_grad();
  CHECK(has_values(buffer, {7, 7, 7, 7}));
  if (buffer.requires_grad()) buffer.sum().backward();
  CHECK((!x.grad().defined() || has_values(x.grad(), {0, 0})));
}

TEST_CASE("inplace: filling part of a tensor stops the gradient there", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = x * 2;
  y[1].fill_(9);
  CHECK(has_values(y, {2, 9, 6}));
  y.sum().backward();
  CHECK(has_values(x.grad(), {2, 0, 2}));
}

TEST_CASE("inplace: all forms of views", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor c = f64({1, 2, 3, 4, 5, 6}, {3, 2});
  const Tensor x = leaf({1, 1, 1, 1, 1, 1}, {2, 3});
  const Tensor y = x * 1;
  y.t().mul_(c);
  y.sum().backward();
  CHECK(has_values(x.grad(), {1, 3, 5, 2, 4, 6}));

  const Tensor z = leaf({1, 2, 3, 4, 5});
  const Tensor u = z * 1;
  u.slice(0, {}, {}, -2).mul_(f64({10, 20, 30}));  // elements 4, 2, 0
  CHECK(has_values(u, {30, 2, 60, 4, 50}));
  u.sum().backward();
  CHECK(has_values(z.grad(), {30, 1, 20, 1, 10}));

  // mlx issue 610: the operand may not enlarge the result, but the tensor may be broadcast before.
  const Tensor p = leaf(std::vector<double>(9, 1), {3, 3});
  const Tensor sum_of = p + ones({3, 3, 3}, kFloat64);
  Tensor q = square(sum_of);
  const double between = q.sum().item();
  CHECK(between == 27 * 4);
  q.sum().backward();
  CHECK(has_values(p.grad(), std::vector<double>(9, 12)));

  // A view of an expanded tensor's base.
  const Tensor r = leaf({1, 2}, {2, 1});
  Tensor base = r * 1;
  const Tensor wide = base.expand({2, 3});
  base.mul_(2);
  CHECK(has_values(wide, {2, 2, 2, 4, 4, 4}));
  (wide * f64({1, 2, 3, 4, 5, 6}, {2, 3})).sum().backward();
  CHECK(has_values(r.grad(), {12, 30}));
}

TEST_CASE("inplace: elements that lie in one place twice are not changed", "[tape]") {
  ON_EVERY_DEVICE(on);
  Tensor x = f64({1, 2}, {2, 1});
  CHECK_ERROR(x.expand({2, 3}).add_(1), ValueError, "overlapping memory");
  CHECK_ERROR(f64({1}).expand({3}).add_(1), ValueError, "strides (0)");
  CHECK_ERROR(x.expand({2, 3}).fill_(0), ValueError, "overlapping memory");
  CHECK_ERROR(x.expand({2, 3}).copy_(zeros({2, 3}, kFloat64)), ValueError, "overlapping memory");
  x.expand({2, 1}).add_(1);
  CHECK(has_values(x, {2, 3}));
}

TEST_CASE("inplace: operands that share the tensor's memory are read first", "[tape]") {
  ON_EVERY_DEVICE(on);
  Tensor a = f64({1, 2, 3, 4});
  a.slice(0, 1, {}).copy_(a.slice(0, {}, -1));
  CHECK(has_values(a, {1, 1, 2, 3}));
  a.slice(0, {}, -1).add_(a.slice(0, 1, {}));
  CHECK(has_values(a, {2, 3, 5, 3}));
  a.slice(0, {}, {}, -1).copy_(a);
  CHECK(has_values(a, {3, 5, 3, 2}));
  a.add_(a);
  CHECK(has_values(a, {6, 10, 6, 4}));
  a.div_(a[0]);
  CHECK(has_values(a, {1, 10.0 / 6, 1, 4.0 / 6}));
}

TEST_CASE("inplace: forms of an op agree with it, and refuse what does not fit", "[tape]") {
  ON_EVERY_DEVICE(on);
  struct Form {
    std::function<void(Tensor&)> change;
    std::function<Tensor(const Tensor&)> function;
  };
  const Tensor other = sample_positive({3}, 4);
  const std::vector<Form> forms = {
      {[&](Tensor& t) { t.add_(other); }, [&](const Tensor& t) { return t + other; }},
      {[&](Tensor& t) { t += 2; }, [&](const Tensor& t) { return t + 2; }},
      {[&](Tensor& t) { t -= other; }, [&](const Tensor& t) { return t - other; }},
      {[&](Tensor& t) { t.sub_(2); }, [&](const Tensor& t) { return t - 2; }},
      {[&](Tensor& t) { t *= other; }, [&](const Tensor& t) { return t * other; }},
      {[&](Tensor& t) { t.mul_(2); }, [&](const Tensor& t) { return t * 2; }},
      {[&](Tensor& t) { t /= other; }, [&](const Tensor& t) { return t / other; }},
      {[&](Tensor& t) { t.div_(2); }, [&](const Tensor& t) { return t / 2; }},
      {[&](Tensor& t) { t.pow_(3); }, [&](const Tensor& t) { return pow(t, 3); }},
      {[&](Tensor& t) { t.clamp_(0.3, 2.01); }, [&](const Tensor& t) { return clamp(t, 0.3, 2.01); }},
      {[&](Tensor& t) { t.exp_(); }, tandem::exp},
      {[&](Tensor& t) { t.log_(); }, tandem::log},
      {[&](Tensor& t) { t.sqrt_(); }, tandem::sqrt},
      {[&](Tensor& t) { t.abs_(); }, tandem::abs},
      {[&](Tensor& t) { t.neg_(); }, tandem::neg},
      {[&](Tensor& t) { t.tanh_(); }, tandem::tanh},
      {[&](Tensor& t) { t.sigmoid_(); }, tandem::sigmoid},
      {[&](Tensor& t) { t.relu_(); }, tandem::relu},
      {[&](Tensor& t) { t.fill_(2); }, [&](const Tensor& t) { return t * 0 + 2; }},
      {[&](Tensor& t) { t.copy_(other); }, [&](const Tensor& t) { return t * 0 + other; }},
  };
  const Tensor x = sample_positive({2, 3});
  for (std::size_t i = 0; i < forms.size(); ++i) {
    INFO("form " << i);
    const auto& [change, function] = forms[i];
    Tensor plain = x.clone();
    change(plain);
    CHECK(same_bits(plain, function(x)));
    CHECK(plain.version() == 1);
    // On the tape, of a whole tensor and of a column of one.
    const auto whole = [&change = change](const Inputs& in) {
      Tensor y = in[0] * 1;
      change(y);
      return std::vector<Tensor>{y};
    };
    CHECK(gradcheck(whole, leaves({x})).error == "");
    if (whole(leaves({x}))[0].requires_grad()) CHECK(gradgradcheck(whole, leaves({x})).error == "");
    const auto column = [&change = change](const Inputs& in) {
      const Tensor y = in[0] * 1;
      Tensor part = y.t().slice(0, {}, {}, 2);
      change(part);
      return std::vector<Tensor>{y, part};
    };
    CHECK(gradcheck(column, leaves({sample_positive({3, 4})})).error == "");
    CHECK(gradgradcheck(column, leaves({sample_positive({3, 4})})).error == "");
  }

  Tensor a = f64({1, 2, 3});
  CHECK_ERROR(a.add_(zeros({2, 3}, kFloat64)), ShapeError, "(3) and (2, 3)");
  CHECK_ERROR(a.copy_(zeros({2, 3}, kFloat64)), ShapeError, "(2, 3)");
  Tensor n = tensor({1, 2, 3});
  CHECK_ERROR(n.add_(a), DTypeError, "float64");
  CHECK_ERROR(n.add_(1.5), DTypeError, "int64 (3)");
  CHECK_ERROR(n.div_(2), DTypeError, "int64 (3)");
  CHECK_ERROR(n.exp_(), DTypeError, "int64 (3)");
  CHECK_ERROR(n.clamp_(0.5, 2), DTypeError, "int64 (3)");
  CHECK_ERROR(n.pow_(-1), ValueError, "negative");
  CHECK_ERROR(n.normal_(), DTypeError, "int64 (3)");
  CHECK_ERROR(a.add_(zeros({3}, kFloat64, on(1))), DeviceError, str(on(1)));
  CHECK(has_values(a, {1, 2, 3}));
  CHECK(has_values(n, {1, 2, 3}));
  CHECK(a.version() == 0);
}

TEST_CASE("inplace: derivatives through mixtures of views and changes", "[tape]") {
  ON_EVERY_DEVICE(on);
  const std::vector<TensorFunction> functions = {
      // Pieces that feed each other.
      [](const Inputs& in) {
        const Tensor y = in[0] * 1;
        y.narrow(0, 0, 2).mul_(y.narrow(0, 1, 2));
        return std::vector<Tensor>{y * y};
      },
      // The operand is recorded too, and a view outlives two changes.
      [](const Inputs& in) {
        Tensor y = in[0] * in[1];
        const Tensor v = y.slice(0, {}, {}, 2);
        y.narrow(0, 0, 1).add_(in[1].narrow(0, 2, 1));
        y.mul_(y);
        return std::vector<Tensor>{y, v.sum()};
      },
      // A row written into a matrix, read back transposed.
      [](const Inputs& in) {
        const Tensor m = zeros({2, 4}, kFloat64);
        m[1].copy_(in[0]);
        m.select(1, 2).add_(in[1].narrow(0, 0, 2));
        return std::vector<Tensor>{m.t() * m.t()};
      },
      // Itself as its operand.
      [](const Inputs& in) {
        Tensor y = in[0] + in[1];
        y.mul_(y);
        y.add_(y);
        return std::vector<Tensor>{y};
      },
      // A reshaped view of a reshaped view.
      [](const Inputs& in) {
        const Tensor y = in[0] * 2;
        Tensor v = y.view({2, 2}).t().unsqueeze(0);
        v.sub_(in[1].view({2, 2}));
        return std::vector<Tensor>{square(y)};
      },
  };
  for (std::size_t i = 0; i < functions.size(); ++i) {
    INFO("function " << i);
    const Inputs inputs = leaves({sample({4}), sample({4}, 2)});
    CHECK(gradcheck(functions[i], inputs).error == "");
    CHECK(gradgradcheck(functions[i], inputs).error == "");
  }
}

TEST_CASE("inplace: no mixture of saved tensors and changes makes a cycle", "[tape]") {
  ON_EVERY_DEVICE(on);
  const std::vector<std::function<void(const Tensor&, const Tensor&)>> mixtures = {
      [](const Tensor& x, const Tensor& w) {
        Tensor a = x * 1;
        const Tensor y = a * w;
        a.add_(y);
      },
      [](const Tensor& x, const Tensor&) {
        Tensor y = sigmoid(x);
        y.mul_(y);
      },
      [](const Tensor& x, const Tensor&) {
        Tensor y = exp(x);
        y.narrow(0, 0, 1).mul_(y.narrow(0, 1, 1));
      },
      [](const Tensor& x, const Tensor& w) {
        Tensor a = x * w;
        Tensor v = a.narrow(0, 0, 1);
        const Tensor y = v * w.narrow(0, 0, 1);
        v.copy_(y);
        a.copy_(a * a);
      },
      [](const Tensor& x, const Tensor& w) {
        Tensor buffer = zeros({2}, kFloat64);
        const Tensor y = x * buffer + w * buffer;
        buffer.add_(y);
      },
      [](const Tensor& x, const Tensor&) {
        const Tensor y = tandem::tanh(x);
        y.retain_grad();
        y.register_hook([](const Tensor& g) { return g * 2; });
        y.sum().backward();
      },
      [](const Tensor& x, const Tensor& w) {
        (x * x * w).sum().backward({}, false, true);
        x.zero_grad();
        w.zero_grad();
      },
      [](const Tensor& x, const Tensor& w) {
        const Tensor g = grad({(x * x * w).sum()}, {x}, {}, {.create_graph = true})[0];
        (g * g).sum().backward();
      },
      [](const Tensor& x, const Tensor& w) {
        const Tensor y = checkpoint([&](const Inputs& in) { return exp(in[0] * w); }, {x});
        Tensor z = y * y;
        z.add_(y);
      },
      [](const Tensor& x, const Tensor& w) {
        const Tensor y = w * x;
        Tensor frozen = w;
        frozen.requires_grad_(false);
        frozen.add_(y);
      },
      // pytorch issues 25340, 10222: an output kept by its own backward.
      [](const Tensor& x, const Tensor&) {
        const Tensor y = softmax(x, 0);
        CHECK_ERROR(y.backward(), AutogradError, "gradient");
      },
  };
  for (std::size_t i = 0; i < mixtures.size(); ++i) {
    INFO("mixture " << i);
    const std::int64_t nodes = live_nodes();
    const std::size_t bytes = memory_stats(on(0)).allocated;
    for (int n = 0; n < 3; ++n) {
      const Tensor x = leaf({0.5, 2});
      const Tensor w = leaf({3, 4});
      mixtures[i](x, w);
    }
    CHECK(live_nodes() == nodes);
    CHECK(memory_stats(on(0)).allocated == bytes);
  }
}
