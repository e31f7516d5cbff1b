// The rules of the tape: what may be changed, run, hooked and asked for, and what is an error.

#include <stdexcept>

#include "../../engine/gradcheck.h"
#include "../../engine/random.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("autograd: gradients add up over every use", "[tape]") {
  ON_EVERY_DEVICE(on);
  // micrograd PR 64: without topological order c.backward() gives 2.
  const Tensor a = leaf({1}, {});
  const Tensor b = a + a;
  const Tensor c = b + b;
  c.backward();
  CHECK(a.grad().item() == 4);

  for (const int uses : {2, 5, 100}) {
    const Tensor x = leaf({1, -2});
    const Tensor y = x * 3;
    Tensor total = f64({0, 0});
    for (int i = 0; i < uses; ++i) total = total + y * static_cast<double>(i);
    total.sum().backward();
    const double wanted = 3.0 * uses * (uses - 1) / 2;
    CHECK(has_values(x.grad(), {wanted, wanted}));
  }
}

TEST_CASE("autograd: a tensor saved for backward must not change", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor w = leaf({2, 3});
  const auto changed_by = [&](const std::function<void(Tensor&)>& change) {
    Tensor x = w * 2;
    const Tensor y = (x * w).sum();
    change(x);
    return message_of<AutogradError>([&] { y.backward(); });
  };
  const std::vector<std::function<void(Tensor&)>> changes = {
      [](Tensor& x) { x.add_(1); }, [](Tensor& x) { x[0].fill_(0); }, [](Tensor& x) { x.detach().mul_(2); },
      [](Tensor& x) {
        const NoGradGuard no_grad;
        x.slice(0, {}, {}, -1).zero_();
      }};
  for (const auto& change : changes) {
    const std::string message = changed_by(change);
    for (const char* part : {"mul", "version 0", "at version 1", "float64 (2)"}) {
      CHECK_THAT(message, ContainsSubstring(part));
    }
  }
  CHECK(changed_by([](Tensor&) {}) == "no exception");

  // The output of exp is saved, that of add is not.
  Tensor e = exp(w);
  e.mul_(2);
  CHECK_ERROR(e.sum().backward(), AutogradError, "exp");
  Tensor s = w + 1;
  s.mul_(2);
  w.zero_grad();
  s.sum().backward();
  CHECK(has_values(w.grad(), {2, 2}));

  // As when an optimizer steps between forward and backward.
  const Tensor loss = (w * w).sum();
  {
    const NoGradGuard no_grad;
    Tensor(w).sub_(0.5);
  }
  CHECK_ERROR(loss.backward(), AutogradError, "changed in place since");
}

TEST_CASE("autograd: leaves that need gradients change under no_grad only", "[tape]") {
  ON_EVERY_DEVICE(on);
  Tensor w = leaf({1, 2, 3});
  CHECK_ERROR(w.add_(1), AutogradError, "add_: a leaf that requires a gradient");
  CHECK_ERROR(w.fill_(1), AutogradError, "NoGradGuard");
  CHECK_ERROR(w.copy_(f64({1, 2, 3})), AutogradError, "leaf");
  CHECK_ERROR(w.uniform_(), AutogradError, "leaf");
  CHECK_ERROR(w[0].mul_(2), AutogradError, "view of a leaf");
  CHECK_ERROR(w.narrow(0, 0, 2).narrow(0, 1, 1).exp_(), AutogradError, "view of a leaf");
  CHECK(has_values(w, {1, 2, 3}));
  CHECK(w.version() == 0);
  {
    const NoGradGuard no_grad;
    w.add_(1);
    w[0].mul_(5);
  }
  CHECK(has_values(w, {10, 3, 4}));
  CHECK(w.version() == 2);
  CHECK(w.requires_grad());
  CHECK(w.is_leaf());
}

TEST_CASE("autograd: pieces of split and unbind do not change while the tape records", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2});
  const Tensor y = x * 1;
  CHECK_ERROR(unbind(y)[0].mul_(2), AutogradError, "split, chunk, unbind");
  CHECK_ERROR(y.split(1)[1].add_(1), AutogradError, "split, chunk, unbind");
  CHECK_ERROR(y.chunk(2, 1)[0].fill_(1), AutogradError, "split, chunk, unbind");
  // pytorch issue 36608: a view of a piece.
  CHECK_ERROR(unbind(y)[0].narrow(0, 0, 2).mul_(2), AutogradError, "split, chunk, unbind");
  CHECK(has_values(y, {1, 2, 3, 4}));

  Tensor plain = f64({1, 2, 3, 4}, {2, 2});
  unbind(plain)[0].mul_(2);
  CHECK(has_values(plain, {2, 4, 3, 4}));
  const NoGradGuard no_grad;
  unbind(y)[0].mul_(2);
  CHECK(has_values(y, {2, 4, 3, 4}));
}

TEST_CASE("autograd: a second backward needs retain_graph", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = (x * x).sum();
  y.backward({}, true);
  CHECK(has_values(x.grad(), {2, 4, 6}));
  y.backward();
  CHECK(has_values(x.grad(), {4, 8, 12}));
  CHECK_ERROR(y.backward(), AutogradError, "buffers were freed");
  CHECK(has_values(x.grad(), {4, 8, 12}));
}

TEST_CASE("autograd: what backward and grad refuse", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = x * 2;
  CHECK_ERROR(y.backward(), AutogradError, "float64 (3)");
  CHECK_ERROR(y.backward(f64({1, 2})), ShapeError, "(2), wanted (3)");
  CHECK_ERROR(y.backward(ones({3})), DTypeError, "float32, wanted float64");
  CHECK_ERROR(y.backward(ones({3}, kFloat64, on(1))), DeviceError, str(on(1)) + ", wanted " + str(on(0)));
  CHECK_ERROR(f64({1}).backward(), AutogradError, "needs no gradient");
  CHECK_ERROR(Tensor().backward(), ValueError, "undefined");
  CHECK_ERROR(backward({}), ValueError, "no outputs");
  CHECK_ERROR(backward({y}, {f64({1, 1, 1}), f64({1, 1, 1})}), ValueError, "1 outputs but 2 gradients");
  CHECK_FALSE(x.grad().defined());

  const Tensor unused = leaf({1});
  CHECK_ERROR(grad({y.sum()}, {x, unused}, {}, {.retain_graph = true}), AutogradError, "do not depend on input 1");
  const auto some = grad({y.sum()}, {x, unused}, {}, {.retain_graph = true}, true);
  CHECK(has_values(some[0], {2, 2, 2}));
  CHECK_FALSE(some[1].defined());
  CHECK_ERROR(grad({y.sum()}, {f64({1})}), AutogradError, "input 0 needs no gradient");

  Tensor whole = tensor({1, 2});
  CHECK_ERROR(whole.requires_grad_(), DTypeError, "int64 (2)");
  CHECK_ERROR(Tensor(y).requires_grad_(false), AutogradError, "detach()");
  CHECK_ERROR(x.set_grad(f64({1})), ShapeError, "set_grad");
  CHECK_ERROR(x.set_grad(ones({3})), DTypeError, "set_grad");
  CHECK_ERROR(x.set_grad(ones({3}, kFloat64, on(1))), DeviceError, "set_grad");
  CHECK_ERROR(y.set_grad(f64({1, 1, 1})), AutogradError, "leaf");
  CHECK_ERROR(f64({1}).register_hook([](const Tensor&) { return Tensor(); }), AutogradError, "needs no gradient");
}

TEST_CASE("autograd: grad leaves .grad alone and reaches inner tensors", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 3;
  const Tensor z = (y * y).sum();
  const auto g = grad({z}, {y, x, z});
  CHECK(has_values(g[0], {6, 12}));
  CHECK(has_values(g[1], {18, 36}));
  CHECK(has_values(g[2], {1}));
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("autograd: second derivatives", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({2, -1});
  const Tensor first = grad({(x * x * x).sum()}, {x}, {}, {.create_graph = true})[0];
  CHECK(has_values(first, {12, 3}));
  const Tensor second = grad({first.sum()}, {x}, {}, {.create_graph = true})[0];
  CHECK(has_values(second, {12, -6}));
  CHECK(has_values(grad({second.sum()}, {x})[0], {6, 6}));

  // Also by backward(): the second one adds to a gradient that is on the tape.
  const Tensor w = leaf({3}, {});
  (w * w).backward({}, false, true);
  const Tensor g = w.grad();
  CHECK(g.requires_grad());
  (g * g).backward();  // d (2 w)^2 / dw = 8 w
  CHECK(w.grad().item() == 6 + 24);
  w.zero_grad();
}

TEST_CASE("autograd: no_grad and enable_grad", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2});
  Tensor view;
  {
    const NoGradGuard no_grad;
    CHECK_FALSE((x * 2).requires_grad());
    CHECK((x * 2).is_leaf());
    {
      const EnableGradGuard enable;
      CHECK((x * 2).requires_grad());
    }
    CHECK_FALSE((x * 2).requires_grad());
    try {
      const EnableGradGuard enable;
      throw std::runtime_error("");
    } catch (const std::runtime_error&) {
    }
    CHECK_FALSE((x * 2).requires_grad());
    view = x[0];
    CHECK_FALSE(view.requires_grad());
  }
  CHECK((x * 2).requires_grad());

  const Tensor y = x * 2;
  Tensor part;
  {
    const NoGradGuard no_grad;
    part = y[0];
  }
  CHECK_ERROR(part.mul_(2), AutogradError, "made under NoGradGuard");
}

TEST_CASE("autograd: an absent gradient stays absent", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2});
  const Tensor unused = leaf({1});
  const Tensor z = x * 1;
  bool ran = false;
  // Two outputs of one node; only the second is used.
  std::vector<Tensor> outs = {x.detach() * 2, x.detach() * 3};
  bool first_defined = true;
  const std::vector<Tensor> ins = {x, z};
  record("pair", outs, ins, [&](GradContext& c) {
    ran = true;
    first_defined = c.grad(0).defined();
    c.set(0, c.grad(1) * 3);  // and nothing for z
  });
  outs[1].sum().backward();
  CHECK(ran);
  CHECK_FALSE(first_defined);
  CHECK(has_values(x.grad(), {3, 3}));
  CHECK_FALSE(unused.grad().defined());

  // A node that gets no gradient at all does not run.
  bool later = false;
  Tensor a = x.detach() * 1;
  record("source", a, {x}, [&](GradContext&) { later = true; });
  Tensor b = a.detach() * 1;
  record("silent", b, {a}, [](GradContext&) {});
  b.sum().backward();
  CHECK_FALSE(later);
}

TEST_CASE("autograd: hooks", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2});
  std::vector<int> order;

  SECTION("see whole gradients, in the order of registration, and replace them") {
    const Tensor y = x * 2;
    y.register_hook([&](const Tensor& g) {
      order.push_back(1);
      CHECK(has_values(g, {8, 8}));
      return g * 10;
    });
    y.register_hook([&](const Tensor& g) {
      order.push_back(2);
      CHECK(has_values(g, {80, 80}));
      return Tensor();
    });
    x.register_hook([&](const Tensor& g) {
      order.push_back(3);
      CHECK(has_values(g, {160, 160}));
      return g + 1;
    });
    (y * 3 + y * 5).sum().backward();
    CHECK(order == std::vector<int>{1, 2, 3});
    CHECK(has_values(x.grad(), {161, 161}));
  }
  SECTION("can be removed, also by themselves") {
    const Tensor y = x * 2;
    HookHandle once;
    once = y.register_hook([&](const Tensor& g) {
      order.push_back(1);
      once.remove();
      return g * 2;
    });
    HookHandle never = y.register_hook([&](const Tensor&) -> Tensor { throw std::logic_error("called"); });
    never.remove();
    never.remove();
    y.sum().backward({}, true);
    y.sum().backward();
    CHECK(order == std::vector<int>{1});
    CHECK(has_values(x.grad(), {6, 6}));
  }
  SECTION("must return what fits") {
    const Tensor y = x * 2;
    y.register_hook([](const Tensor& g) { return g.sum(); });
    CHECK_ERROR(y.sum().backward(), ShapeError, "mul: the gradient returned by a hook");
    const Tensor z = x * 2;
    z.register_hook([](const Tensor& g) { return g.to(kFloat32); });
    CHECK_ERROR(z.sum().backward(), DTypeError, "hook");
    CHECK_FALSE(x.grad().defined());
  }
  SECTION("may throw; the engine is usable afterwards") {
    const Tensor y = x * 2;
    HookHandle handle = y.register_hook([](const Tensor&) -> Tensor { throw std::logic_error("no"); });
    const Tensor loss = y.sum();
    CHECK_THROWS_AS(loss.backward({}, true), std::logic_error);
    CHECK_FALSE(x.grad().defined());
    handle.remove();
    loss.backward();
    CHECK(has_values(x.grad(), {2, 2}));
  }
  SECTION("may run backward through another graph, but not through their own") {
    const Tensor other = leaf({5});
    const Tensor y = x * 2;
    const Tensor loss = y.sum();
    y.register_hook([&](const Tensor&) {
      const EnableGradGuard enable;
      (other * 7).sum().backward();
      CHECK_ERROR(loss.backward({}, true), AutogradError, "already running");
      return Tensor();
    });
    loss.backward({}, true);
    CHECK(has_values(other.grad(), {7}));
    CHECK(has_values(x.grad(), {2, 2}));
  }
}

TEST_CASE("autograd: retain_grad keeps the gradient of a non-leaf", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 2;
  y.retain_grad();
  y.retain_grad();
  (y * y).sum().backward({}, true);
  CHECK(has_values(y.grad(), {4, 8}));
  CHECK(has_values(x.grad(), {8, 16}));
  (y * y).sum().backward();
  CHECK(has_values(y.grad(), {8, 16}));
  y.zero_grad();
  CHECK_FALSE(y.grad().defined());
}

TEST_CASE("autograd: an error in a node reaches the caller, and the next backward is right", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2});
  const auto chain = [&](int failing) {
    Tensor y = x * 1;
    for (int i = 0; i < 10; ++i) {
      Tensor next = y.detach() * 2;
      record("link", next, {y}, [i, failing](GradContext& c) {
        if (i == failing) throw std::runtime_error("link " + std::to_string(i));
        c.set(0, c.grad() * 2);
      });
      y = next;
    }
    return y.sum();
  };
  CHECK_THROWS_WITH(chain(3).backward(), "link 3");
  CHECK_FALSE(x.grad().defined());
  chain(-1).backward();
  CHECK(has_values(x.grad(), {1024, 1024}));

  Tensor y = x.detach() * 2;
  record("misshapen", y, {x}, [](GradContext& c) { c.set(0, c.grad().sum()); });
  CHECK_ERROR(y.sum().backward(), ShapeError, "misshapen: the gradient of an input has shape (), wanted (2)");
}

TEST_CASE("autograd: anomaly mode names the operation that made a NaN", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({0, 4});
  // The gradient of sqrt at 0 is infinite; times 0 it is NaN.
  const auto loss = [&] { return where(gt(x, 0), sqrt(x), 0).sum(); };
  loss().backward();
  CHECK(std::isnan(x.grad().to_vector()[0]));
  const AnomalyGuard guard;
  CHECK_ERROR(loss().backward(), AutogradError, "sqrt");
}

TEST_CASE("autograd: checkpoint computes again what it did not keep", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = sample({4, 3}).requires_grad_();
  const Tensor w = sample({3, 3}, 1).requires_grad_();
  const auto block = [&](const Inputs& in) { return dropout(tanh(in[0].matmul(w)), 0.5); };
  const auto run = [&](bool checkpointed) {
    manual_seed(5);
    x.zero_grad();
    w.zero_grad();
    const Tensor y = checkpointed ? checkpoint(block, {x}) : block({x});
    rand({3});  // moves the generator before backward
    const GeneratorState before = generator_state(on(0));
    (y * y).sum().backward();
    CHECK(generator_state(on(0)) == before);
    return std::vector<Tensor>{y.detach(), x.grad().clone(), w.grad().clone()};
  };
  const auto wanted = run(false);
  const auto again = run(true);
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(same_bits(wanted[i], again[i]));

  // One node on the tape instead of four.
  const std::int64_t nodes = live_nodes();
  const Tensor y = checkpoint(block, {x});
  CHECK(live_nodes() == nodes + 1);
  CHECK_ERROR(grad({y.sum()}, {x}), AutogradError, "checkpoint");
  manual_seed(0);
}

TEST_CASE("autograd: checkpoint draws again for the same part of a batch", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = sample({4, 3}).requires_grad_();
  const Tensor w = sample({3, 3}, 1).requires_grad_();
  const auto block = [&](const Inputs& in) { return dropout(dropout(tanh(in[0].matmul(w)), 0.5), 0.3); };
  const auto run = [&](bool checkpointed) {
    x.zero_grad();
    w.zero_grad();
    const Tensor in = x * 2;
    bool hooked = false;
    in.register_hook([&](const Tensor& g) {
      hooked = true;
      CHECK(context().samples == nullptr);
      return g;
    });
    SampleRange samples{on(1), {5, 9}, 3, 4, 10};
    const Tensor y = [&] {
      const ContextGuard guard(context());
      context().samples = &samples;
      return checkpointed ? checkpoint(block, {in}) : block({in});
    }();
    const GeneratorState after = samples.generator;
    // Each dropout took ceil(30 / 4) blocks.
    CHECK(after == GeneratorState{5, 9 + 8 + 8});
    const GeneratorState of_device = generator_state(on(0));
    (y * y).sum().backward();
    CHECK(samples.generator == after);
    CHECK(generator_state(on(0)) == of_device);
    CHECK(hooked);
    return std::vector<Tensor>{y.detach(), x.grad().clone(), w.grad().clone()};
  };
  const auto wanted = run(false);
  const auto again = run(true);
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(same_bits(wanted[i], again[i]));
}

namespace {

/// The example in autograd.h.
Tensor cube(const Tensor& x) {
  Tensor y = x.detach() * x.detach() * x.detach();
  if (needs_grad(x)) {
    record("cube", y, {x}, [x = saved(x)](GradContext& c) { c.set(0, c.grad() * 3 * square(x.get(c))); });
  }
  return y;
}

}  // namespace

TEST_CASE("autograd: a function of one's own", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({2, -1});
  const Tensor y = cube(x);
  CHECK(has_values(y, {8, -1}));
  CHECK(y.grad_fn()->name() == std::string("cube"));
  const auto f = [](const Inputs& in) { return std::vector<Tensor>{cube(in[0])}; };
  CHECK(gradcheck(f, {x}).error == "");
  CHECK(gradgradcheck(f, {x}).error == "");
  CHECK_FALSE(cube(x.detach()).requires_grad());
}

TEST_CASE("autograd: gradcheck refuses what it cannot check, and finds what is wrong") {
  ON_EVERY_DEVICE(on);
  const auto same = [](const Inputs& in) { return std::vector<Tensor>{in[0] * 1}; };
  CHECK_ERROR(gradcheck(same, {sample({2}).to(kFloat32).requires_grad_()}), DTypeError, "float32 (2)");
  CHECK_ERROR(gradcheck(same, {sample({2})}), ValueError, "no input requires a gradient");
  // A dependence that the tape does not see.
  const auto hidden = [](const Inputs& in) { return std::vector<Tensor>{in[0] * in[0].detach()}; };
  CHECK_THAT(gradcheck(hidden, {sample({2}).requires_grad_()}).error, ContainsSubstring("differences give"));
  const auto off_tape = [](const Inputs& in) { return std::vector<Tensor>{in[0].detach() * 1}; };
  CHECK_FALSE(gradcheck(off_tape, {sample({2}).requires_grad_()}));
  // A right first derivative whose own derivative is lost.
  const auto once = [](const Inputs& in) {
    Tensor y = square(in[0].detach());
    record("once", y, {in[0]}, [x = in[0].detach()](GradContext& c) { c.set(0, c.grad() * 2 * x); });
    return std::vector<Tensor>{y};
  };
  CHECK(gradcheck(once, {sample({2}).requires_grad_()}).error == "");
  CHECK_FALSE(gradgradcheck(once, {sample({2}).requires_grad_()}));
  // A backward that depends on the run.
  int runs = 0;
  const auto restless = [&](const Inputs& in) {
    Tensor y = in[0].detach() * 1;
    record("restless", y, {in[0]}, [&](GradContext& c) { c.set(0, c.grad() * (1 + 1e-9 * ++runs)); });
    return std::vector<Tensor>{y};
  };
  CHECK_THAT(gradcheck(restless, {sample({2}).requires_grad_()}).error, ContainsSubstring("run to run"));
}

TEST_CASE("autograd: the tape as text", "[tape]") {
  ON_EVERY_DEVICE(on);
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2});
  const Tensor y = sigmoid(x * 2).to(on(1)).sum();
  const std::string table = tape_table(y);
  // Latest first; the leaf's accumulator is there, and the device of each node.
  std::size_t at = 0;
  for (const char* name : {"sum", "to_device", "sigmoid", "mul"}) {
    INFO(table << "\nwanted next: " << name);
    const std::size_t next = table.find(std::string(" ") + name + " ", at);
    REQUIRE(next != std::string::npos);
    at = next;
  }
  CHECK_THAT(table,
             ContainsSubstring("accumulate") && ContainsSubstring(str(on(1))) && ContainsSubstring("float64(2, 2)"));

  const std::string dot = tape_dot(y);
  CHECK_THAT(dot, ContainsSubstring("digraph tape {") && ContainsSubstring("cluster_" + str(on(1))) &&
                      ContainsSubstring("sigmoid\\nfloat64(2, 2)"));
  std::size_t arrows = 0;
  for (std::size_t i = dot.find("->"); i != std::string::npos; i = dot.find("->", i + 1)) ++arrows;
  CHECK(arrows == 4);
  CHECK(y.grad_fn()->next().size() == 1);
  CHECK(tape_table(f64({1})).find('\n') == tape_table(f64({1})).size() - 1);
}
