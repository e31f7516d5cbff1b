// What holds for every op, tested on the samples of its record.

#include <set>

#include "../../engine/gradcheck.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Calls f(record, sample) for every sample there is, each record in a section of its own.
template <class F>
void for_each_sample(F f) {
  for (const OpRecord& record : op_records()) {
    DYNAMIC_SECTION(record.name) {
      const std::vector<OpSample> samples = record.samples();
      for (std::size_t i = 0; i < samples.size(); ++i) {
        INFO("sample " << i << ": " << samples[i].python);
        f(record, samples[i]);
      }
    }
  }
}

template <class F>
void for_each_differentiable(F f) {
  for_each_sample([&](const OpRecord& record, const OpSample& sample) {
    if (record.differentiable) f(record, sample);
  });
}

bool random(const OpRecord& record) { return record.name == std::string("dropout"); }

/// x by another order of the dimensions in memory.
Tensor transposed_layout(const Tensor& x) {
  Shape reversed;
  for (int i = x.dim() - 1; i >= 0; --i) reversed.push_back(i);
  return x.permute(reversed).clone().permute(reversed);
}

/// x as every second element, forward or backward, of a larger tensor that holds NaN, or other numbers, elsewhere.
Tensor spread_layout(const Tensor& x, bool backward) {
  Shape shape = x.sizes();
  for (std::int64_t& n : shape) n = 2 * n + 3;
  Tensor filled = is_floating(x.dtype()) ? full(shape, NAN, x.dtype()) : full(shape, 1, x.dtype());
  for (int i = 0; i < x.dim(); ++i) {
    const std::int64_t n = x.size(i);
    filled = backward ? filled.slice(i, 2 * n, 0, -2) : filled.slice(i, 1, 2 * n, 2);
  }
  return filled.copy_(x);
}

/// x after some elements of another tensor.
Tensor offset_layout(const Tensor& x) {
  const Tensor filled =
      is_floating(x.dtype()) ? full({x.numel() + 3}, NAN, x.dtype()) : ones({x.numel() + 3}, x.dtype());
  return filled.narrow(0, 3, x.numel()).view(x.sizes()).copy_(x);
}

/// x, but with the gradient's sign turned.
Tensor with_wrong_sign(const Tensor& x) {
  Tensor y = x.detach().clone();
  if (needs_grad(x)) record("wrong_sign", y, {x}, [](GradContext& c) { c.set(0, neg(c.grad())); });
  return y;
}

}  // namespace

TEST_CASE("op: records have distinct names, texts and samples") {
  std::set<std::string> names;
  for (const OpRecord& record : op_records()) {
    INFO(record.name);
    CHECK(names.insert(record.name).second);
    CHECK(std::string(record.text) != "");
    CHECK(record.samples().size() >= 2);
  }
  CHECK(names.size() >= 60);
}

TEST_CASE("op: gradients agree with differences") {
  for_each_differentiable([](const OpRecord&, const OpSample& sample) {
    CHECK(gradcheck(sample.call, leaves(sample.inputs)).error == "");
  });
}

TEST_CASE("op: second gradients agree with differences") {
  for_each_differentiable([](const OpRecord&, const OpSample& sample) {
    CHECK(gradgradcheck(sample.call, leaves(sample.inputs)).error == "");
  });
}

TEST_CASE("op: a fused gradient is the composed one") {
  for_each_differentiable([](const OpRecord&, const OpSample& sample) {
    const Inputs inputs = leaves(sample.inputs);
    const Evaluation fused = evaluate(sample, inputs);
    const Evaluation composed = evaluate(sample, inputs, {.create_graph = true});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      INFO("input " << i << "\nfused " << text(fused.gradients[i]) << "\ncomposed " << text(composed.gradients[i]));
      CHECK(close(fused.gradients[i], composed.gradients[i], 1e-12, 1e-12));
    }
  });
}

TEST_CASE("op: strided inputs give what contiguous ones give") {
  for_each_sample([](const OpRecord&, const OpSample& sample) {
    const Evaluation wanted = evaluate(sample, leaves(sample.inputs));
    for (int layout = 0; layout < 4; ++layout) {
      Inputs inputs;
      for (const Tensor& x : sample.inputs) {
        Tensor y = layout == 0 ? transposed_layout(x) : layout == 3 ? offset_layout(x) : spread_layout(x, layout == 2);
        y = y.detach();
        REQUIRE(equal(x, y));
        if (is_floating(x.dtype())) y.requires_grad_();
        inputs.push_back(y);
      }
      const Evaluation e = evaluate(sample, inputs);
      REQUIRE(e.outputs.size() == wanted.outputs.size());
      for (std::size_t i = 0; i < e.outputs.size(); ++i) {
        INFO("layout " << layout << " output " << i << "\n" << text(e.outputs[i]) << "\n" << text(wanted.outputs[i]));
        CHECK(close(e.outputs[i], wanted.outputs[i], 1e-12, 1e-12));
      }
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        INFO("layout " << layout << " input " << i << "\n"
                       << text(e.gradients[i]) << "\n"
                       << text(wanted.gradients[i]));
        CHECK(close(e.gradients[i], wanted.gradients[i], 1e-12, 1e-12));
      }
    }
  });
}

TEST_CASE("op: float32 agrees with float64 to 1e-4") {
  for_each_sample([](const OpRecord& record, const OpSample& sample) {
    if (random(record)) return;
    const Evaluation wide = evaluate(sample, leaves(sample.inputs));
    const Evaluation narrow = evaluate(sample, leaves(sample.inputs, cpu(), kFloat32));
    for (std::size_t i = 0; i < wide.outputs.size(); ++i) {
      INFO("output " << i << "\n" << text(narrow.outputs[i]) << "\n" << text(wide.outputs[i]));
      CHECK(narrow.outputs[i].dtype() == (wide.outputs[i].dtype() == kFloat64 ? kFloat32 : wide.outputs[i].dtype()));
      CHECK(close(narrow.outputs[i], wide.outputs[i], 1e-4, 1e-4));
    }
    for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
      INFO("input " << i << "\n" << text(narrow.gradients[i]) << "\n" << text(wide.gradients[i]));
      CHECK(close(narrow.gradients[i], wide.gradients[i], 1e-4, 1e-4));
    }
  });
}

TEST_CASE("op: empty inputs are fine, and have gradients of their shape") {
  for (const OpRecord& record : op_records()) {
    DYNAMIC_SECTION(record.name) {
      int empty_samples = 0;
      for (const OpSample& sample : record.samples()) {
        const Inputs inputs = leaves(sample.inputs);
        bool any_empty = false;
        for (const Tensor& x : inputs) any_empty = any_empty || x.numel() == 0;
        const std::vector<Tensor> outputs = sample.call(inputs);
        for (const Tensor& out : outputs) any_empty = any_empty || out.numel() == 0;
        if (!any_empty) continue;
        INFO(sample.python);
        ++empty_samples;
        if (!record.differentiable) continue;
        std::vector<Tensor> roots;
        std::vector<Tensor> gradients;
        for (const Tensor& out : outputs) {
          if (!out.requires_grad()) continue;
          roots.push_back(out);
          gradients.push_back(output_gradient(out));
        }
        backward(roots, gradients);
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          if (!inputs[i].requires_grad()) continue;
          INFO("input " << i);
          REQUIRE(inputs[i].grad().defined());
          CHECK(inputs[i].grad().sizes() == inputs[i].sizes());
          // What an output's element does not reach has gradient 0.
          CHECK_FALSE(isnan(inputs[i].grad()).to(kInt64).sum().item<int>());
        }
      }
      CHECK(empty_samples >= 1);
    }
  }
}

TEST_CASE("op: every CPU device gives the same bits, every CUDA device nearly") {
  for_each_sample([](const OpRecord& record, const OpSample& sample) {
    const Evaluation wanted = evaluate(sample, leaves(sample.inputs));
    std::int64_t terms = 1;
    for (const Tensor& x : sample.inputs) terms = std::max(terms, x.numel());
    const auto agrees = [&](const Tensor& a, const Tensor& b, Device device) {
      const double near = 4 * device_tolerance(kFloat64, terms);
      return random(record) || (device.type == DeviceType::CPU ? same_bits(a, b) : close(a, b, near, near));
    };
    for_each_device([&](Device device) {
      const Evaluation e = evaluate(sample, leaves(sample.inputs, device));
      INFO(str(device));
      for (std::size_t i = 0; i < e.outputs.size(); ++i) {
        CHECK(e.outputs[i].device() == device);
        CHECK(e.outputs[i].dtype() == wanted.outputs[i].dtype());
        CHECK(agrees(e.outputs[i], wanted.outputs[i], device));
      }
      for (std::size_t i = 0; i < e.gradients.size(); ++i) {
        if (e.gradients[i].defined()) CHECK(e.gradients[i].device() == device);
        CHECK(agrees(e.gradients[i], wanted.gradients[i], device));
      }
    });
  });
}

TEST_CASE("op: several threads give the same bits as one") {
  for_each_sample([](const OpRecord&, const OpSample& sample) {
    const ContextGuard guard(context());
    set_num_threads(1);
    const Evaluation one = evaluate(sample, leaves(sample.inputs));
    set_num_threads(4);
    const Evaluation four = evaluate(sample, leaves(sample.inputs));
    for (std::size_t i = 0; i < one.outputs.size(); ++i) CHECK(same_bits(one.outputs[i], four.outputs[i]));
    for (std::size_t i = 0; i < one.gradients.size(); ++i) CHECK(same_bits(one.gradients[i], four.gradients[i]));
  });
}

TEST_CASE("op: mixed devices are refused") {
  for_each_sample([](const OpRecord&, const OpSample& sample) {
    if (sample.inputs.size() < 2) return;
    Inputs inputs = leaves(sample.inputs);
    inputs[1] = inputs[1].detach().to(cpu(1));
    CHECK_ERROR(sample.call(inputs), DeviceError, "cpu:1");
  });
}

TEST_CASE("op: the checker catches a wrong sign in every gradient") {
  for (const OpRecord& record : op_records()) {
    if (!record.differentiable || record.name == std::string("sign")) continue;  // sign's gradient is 0
    DYNAMIC_SECTION(record.name) {
      std::set<std::size_t> inputs_seen;
      std::set<std::size_t> inputs_caught;
      for (const OpSample& sample : record.samples()) {
        const std::vector<Tensor> gradients = evaluate(sample, leaves(sample.inputs)).gradients;
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          if (!is_floating(sample.inputs[i].dtype())) continue;
          inputs_seen.insert(i);
          if (gradients[i].numel() == 0 || !(abs(gradients[i]).max().item() > 1e-3)) continue;
          const auto mutant = [&](const Inputs& x) {
            Inputs inner = x;
            inner[i] = with_wrong_sign(x[i]);
            return sample.call(inner);
          };
          INFO(sample.python << ", input " << i);
          const GradcheckResult result = gradcheck(mutant, leaves(sample.inputs));
          CHECK_FALSE(result);
          if (!result) inputs_caught.insert(i);
        }
      }
      CHECK(inputs_caught == inputs_seen);
    }
  }
}
