// Tensors without the tape: what is refused, views and slices, promotion, printing, reading.

#include <optional>
#include <sstream>

#include "helpers.h"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("tensor: shapes that do not fit are named") {
  ON_EVERY_DEVICE(on);
  const Tensor a = zeros({2, 3});
  CHECK_ERROR(a + zeros({4}), ShapeError, "add: shapes (2, 3) and (4)");
  CHECK_ERROR(where(gt(a, 0), zeros({2}), a), ShapeError, "(2)");
  CHECK_ERROR(a.matmul(zeros({4, 5})), ShapeError, "matmul: shapes (2, 3) and (4, 5) do not fit: inner sizes 3 and 4");
  CHECK_ERROR(zeros({3}).matmul(zeros({4})), ShapeError, "inner sizes 3 and 4");
  CHECK_ERROR(zeros({2, 2, 3}).matmul(zeros({3, 3, 1})), ShapeError, "(2) and (3)");
  CHECK_ERROR(linear(a, zeros({4, 2})), ShapeError, "(..., 2)");
  CHECK_ERROR(linear(a, zeros({4, 3}), zeros({3})), ShapeError, "bias (4)");
  CHECK_ERROR(a.reshape({4, 2}), ShapeError, "(2, 3) has 6 elements");
  CHECK_ERROR(a.reshape({-1, -1}), ShapeError, "only one size");
  CHECK_ERROR(a.reshape({-1, 4}), ShapeError, "(-1, 4)");
  CHECK_ERROR(a.reshape({-2, -3}), ShapeError, "negative");
  CHECK_ERROR(zeros({0, 3}).reshape({0, -1}), ShapeError, "could be any size");
  CHECK(zeros({0, 3}).reshape({-1, 3}).sizes() == Shape{0, 3});
  CHECK_ERROR(a.reshape({std::int64_t{1} << 62, 8}), ShapeError, "too many elements");
  // pytorch issue 16413: broadcasting here gives 1.3333.
  CHECK_ERROR(mse_loss(zeros({3}), zeros({3, 1})), ShapeError, "(3) and (3, 1)");
  CHECK_ERROR(cat({a, zeros({2, 4})}, 0), ShapeError, "tensor 1 is (2, 4)");
  CHECK_ERROR(cat({a, zeros({3})}, 0), ShapeError, "(3)");
  CHECK_ERROR(stack({a, zeros({3, 2})}), ShapeError, "(2, 3) and (3, 2)");
  CHECK_ERROR(a.expand({3, 3}), ShapeError, "(2, 3) cannot be stretched to (3, 3)");
  CHECK_ERROR(a.expand({3}), ShapeError, "(3)");
  CHECK_ERROR(a.expand({-1, 2, 3}), ShapeError, "(-1, 2, 3)");
  CHECK_ERROR(sum_to(a, {3, 3}), ShapeError, "sum_to");
  CHECK_ERROR(a.permute({0}), ShapeError, "wanted 2 dimensions");
  CHECK_ERROR(zeros({3}).t(), ShapeError, "must have 2 dimensions");
  CHECK_ERROR(from_vector(std::vector<float>{1, 2}, {3}), ShapeError, "2 values do not fill shape (3)");
  CHECK_ERROR(zeros({1, 1, 1, 1, 1, 1, 1, 1, 1}), ShapeError, "at most 8 dimensions");
  CHECK_ERROR(zeros({1, 1, 1, 1, 1, 1, 1, 1}).unsqueeze(0), ShapeError, "at most 8 dimensions");
  CHECK_ERROR(layer_norm(a, {2}), ShapeError, "(2, 3)");
  CHECK_ERROR(batch_norm(a, zeros({2}), {}, {}, {}, true), ShapeError, "of shape (3)");
  CHECK_ERROR(batch_norm(zeros({3}), {}, {}, {}, {}, true), ShapeError, "(n, c, ...)");
  CHECK_ERROR(embedding(tensor({0}), zeros({3})), ShapeError, "must have 2 dimensions");
  CHECK_ERROR(gather(a, 0, tensor({0})), ShapeError, "gather");
  CHECK_ERROR(gather(a, 0, zeros({1, 4}, kInt64)), ShapeError, "(1, 4)");
  CHECK_ERROR(index_add(a, 0, tensor({0, 1}), zeros({1, 3})), ShapeError, "wanted a source (2, 3)");
  CHECK_ERROR(cross_entropy(a, zeros({3}, kInt64)), ShapeError, "wanted a target (2)");
}

TEST_CASE("tensor: dtypes that an op does not take are named") {
  ON_EVERY_DEVICE(on);
  const Tensor a = zeros({2, 3});
  const Tensor whole = zeros({2, 3}, kInt64);
  CHECK_ERROR(mean(whole), DTypeError, "mean: wanted a floating tensor, got int64 (2, 3) on " + str(on(0)));
  CHECK_ERROR(var(whole), DTypeError, "int64");
  CHECK_ERROR(whole.matmul(a.t()), DTypeError, "int64");
  CHECK_ERROR(softmax(whole, 0), DTypeError, "int64");
  CHECK_ERROR(dropout(whole), DTypeError, "int64");
  CHECK_ERROR(embedding(tensor({0.0}), a), DTypeError, "must be int64, got float32 (1)");
  CHECK_ERROR(index_select(a, 0, tensor({0.0})), DTypeError, "int64");
  CHECK_ERROR(cross_entropy(a, zeros({2})), DTypeError, "int64");
  CHECK_ERROR(where(a, a, a), DTypeError, "must be bool");
  CHECK_ERROR(linear(a, zeros({1, 3}, kFloat64)), DTypeError, "float64");
  CHECK_ERROR(conv2d(zeros({1, 1, 2, 2}), zeros({1, 1, 1, 1}, kFloat64)), DTypeError, "float64");
  CHECK_ERROR(gt(a, 0) - gt(a, 0), DTypeError, "bool");
  CHECK_ERROR(-gt(a, 0), DTypeError, "bool");
  CHECK_ERROR(rand({2}, kInt32), DTypeError, "int32");
  CHECK_ERROR(randint(0, 2, {2}, kBool), DTypeError, "bool");
  CHECK_ERROR(a.data<double>(), DTypeError, "float32 (2, 3) on " + str(on(0)) + ", not float64");
  CHECK(a.data<float>() == a.data_ptr());
}

TEST_CASE("tensor: two devices do not mix") {
  ON_EVERY_DEVICE(on);
  const Tensor a = zeros({2, 3});
  const Tensor b = zeros({2, 3}, kFloat32, on(1));
  CHECK_ERROR(a + b, DeviceError, "float32 (2, 3) on " + str(on(0)) + " and float32 (2, 3) on " + str(on(1)));
  CHECK_ERROR(a * zeros({}, kFloat64, on(1)), DeviceError, str(on(1)));
  CHECK_ERROR(cat({a, b}), DeviceError, str(on(1)));
  CHECK_ERROR(eq(a, b), DeviceError, str(on(1)));
  CHECK(equal(a.to(on(1)), b));
  CHECK(Tensor(a).copy_(b).device() == on(0));
}

TEST_CASE("tensor: undefined tensors are refused") {
  ON_EVERY_DEVICE(on);
  const Tensor none;
  const Tensor a = zeros({2});
  CHECK_FALSE(none.defined());
  CHECK_FALSE(none.requires_grad());
  CHECK_ERROR(none + a, ValueError, "add: the first operand is undefined");
  CHECK_ERROR(exp(none), ValueError, "exp");
  CHECK_ERROR(none.sum(), ValueError, "sum");
  CHECK_ERROR(none.reshape({1}), ValueError, "reshape");
  CHECK_ERROR(none.clone(), ValueError, "clone");
  CHECK_ERROR(none.item(), ValueError, "item");
  CHECK_ERROR(none.detach(), ValueError, "detach");
  CHECK_ERROR(cat({a, none}), ValueError, "cat");
  CHECK_ERROR(Tensor().requires_grad_(), ValueError, "requires_grad_");
  CHECK_ERROR(Tensor().add_(a), ValueError, "add_");
  CHECK_ERROR(none.dim(), ValueError, "dim: the tensor is undefined");
  CHECK_ERROR(none.sizes(), ValueError, "sizes");
  CHECK_ERROR(none.strides(), ValueError, "strides");
  CHECK_ERROR(none.size(0), ValueError, "sizes");
  CHECK_ERROR(none.stride(0), ValueError, "strides");
  CHECK_ERROR(none.numel(), ValueError, "numel");
  CHECK_ERROR(none.dtype(), ValueError, "dtype");
  CHECK_ERROR(none.device(), ValueError, "device");
  CHECK_ERROR(none.nbytes(), ValueError, "numel");
  CHECK_ERROR(none.is_contiguous(), ValueError, "is_contiguous");
  CHECK_ERROR(none.storage_offset(), ValueError, "storage_offset");
  CHECK_ERROR(none.data_ptr(), ValueError, "data_ptr");
  CHECK_ERROR(none.data<float>(), ValueError, "dtype");
  CHECK_ERROR(none.to_vector(), ValueError, "to");
  CHECK_ERROR(none.version(), ValueError, "version");
  CHECK_ERROR(none.grad(), ValueError, "grad");
  CHECK_ERROR(none.retain_grad(), ValueError, "retain_grad");
  CHECK_ERROR(none.set_data(a), ValueError, "set_data");
  CHECK_ERROR(none.register_hook([](const Tensor& g) { return g; }), AutogradError, "register_hook");
  CHECK_ERROR(none.backward(), ValueError, "backward");
  CHECK_FALSE(none.grad_fn());
  CHECK(none.is_leaf());
}

TEST_CASE("tensor: indices and dimensions out of range are named") {
  ON_EVERY_DEVICE(on);
  const Tensor a = f64({1, 2, 3, 4, 5, 6}, {2, 3});
  // On a CUDA device, the index is met when the kernel has run.
  const auto waited = [&](const Tensor&) { synchronize(on(0)); };
  CHECK_ERROR(waited(index_select(a, 0, tensor({0, 2}))), IndexError,
              "index 2 at position 1 is out of range: wanted 0 to 1");
  CHECK_ERROR(waited(index_select(a, 1, tensor({-1}))), IndexError, "index -1 at position 0");
  CHECK_ERROR(waited(index_add(a, 0, tensor({5}), zeros({1, 3}, kFloat64))), IndexError, "index 5");
  CHECK_ERROR(waited(gather(a, 1, from_vector(std::vector<std::int64_t>{0, 3}, {2, 1}))), IndexError,
              "index 3 at position 1");
  CHECK_ERROR(waited(scatter_add(a, 1, zeros({2, 1}, kInt64) - 1, ones({2, 1}, kFloat64))), IndexError, "index -1");
  CHECK_ERROR(waited(embedding(tensor({1, 7}), a)), IndexError, "index 7 at position 1");
  CHECK_ERROR(waited(cross_entropy(a, tensor({0, 3}))), IndexError, "3");
  CHECK_ERROR(waited(cross_entropy(a, tensor({-1, 0}))), IndexError, "-1");
  CHECK_ERROR(waited(nll_loss(a, tensor({0, 3}))), IndexError, "3");
  CHECK_ERROR(embedding(tensor({1}), a, 2), ValueError, "padding_idx 2");
  CHECK(has_values(a, {1, 2, 3, 4, 5, 6}));

  CHECK_ERROR(a.sum({2}), IndexError, "dimension 2 is out of range for a tensor of 2 dimensions: wanted -2 to 1");
  CHECK_ERROR(a.sum({-3}), IndexError, "dimension -3");
  CHECK_ERROR(a.sum({0, -2}), IndexError, "twice");
  CHECK_ERROR(a.permute({0, 0}), IndexError, "twice");
  CHECK_ERROR(softmax(a, 2), IndexError, "softmax");
  CHECK_ERROR(a.transpose(0, 2), IndexError, "transpose");
  CHECK_ERROR(a.select(0, 2), IndexError, "index 2 is out of range for dimension 0 of (2, 3)");
  CHECK_ERROR(a[-3], IndexError, "-3");
  CHECK_ERROR(a.narrow(1, 1, 3), IndexError, "3 elements from 1");
  CHECK_ERROR(a.narrow(1, -4, 1), IndexError, "-4");
  CHECK_ERROR(a.unsqueeze(3), IndexError, "unsqueeze");
  CHECK_ERROR(a.size(2), IndexError, "size");
  CHECK(has_values(a.sum({-1}), {6, 15}));
}

TEST_CASE("tensor: values out of range are named") {
  ON_EVERY_DEVICE(on);
  const Tensor a = zeros({2, 3});
  CHECK_ERROR(zeros({2, -1}), ValueError, "must not be negative, got (2, -1)");
  CHECK_ERROR(zeros({std::int64_t{1} << 40, std::int64_t{1} << 30}), ValueError, "2^63 - 1 bytes");
  CHECK_ERROR(empty({0, std::int64_t{1} << 40, std::int64_t{1} << 30}), ValueError, "2^63 - 1 bytes");
  CHECK_ERROR(cat(std::span<const Tensor>{}), ValueError, "no tensors");
  CHECK_ERROR(a.slice(0, {}, {}, 0), ValueError, "step");
  CHECK_ERROR(a.split(0), ValueError, "at least 1");
  CHECK_ERROR(split(a, std::vector<std::int64_t>{1, 2}), ValueError, "add up to 3");
  CHECK_ERROR(a.chunk(0), ValueError, "at least 1");
  CHECK_ERROR(a.flatten(1, 0), ValueError, "flatten");
  CHECK_ERROR(clamp(a, {}, {}), ValueError, "bound");
  CHECK_ERROR(arange(0, 5, 0), ValueError, "by 0");
  CHECK_ERROR(arange(0, 5, -1), ValueError, "by -1");
  CHECK_ERROR(dropout(a, 1.5), ValueError, "1.5");
  CHECK_ERROR(dropout(a, NAN), ValueError, "nan");
  CHECK_ERROR(randint(3, 3, {2}), ValueError, "lo < hi");
  CHECK_ERROR(Tensor(a).uniform_(1, 0), ValueError, "lo <= hi");
  CHECK_ERROR(Tensor(a).normal_(0, -1), ValueError, "std");
  CHECK_ERROR(a.item(), ValueError, "one element, got float32 (2, 3)");
  CHECK_ERROR(zeros({0}).item(), ValueError, "(0)");
  CHECK_ERROR(batch_norm(a, {}, {}, {}, {}, false), ValueError, "running statistics");
  CHECK_ERROR(batch_norm(a, {}, {}, zeros({3}), {}, true), ValueError, "without the other");

  const Tensor x = zeros({1, 4, 3, 3});
  const Tensor w = zeros({2, 4, 2, 2});
  CHECK_ERROR(conv2d(x, zeros({2, 4, 4, 1})), ValueError, "spans 4 does not fit an input of 3 with padding 0");
  CHECK_ERROR(conv2d(x, w, {}, {.stride = {0, 1}}), ValueError, "stride must be at least 1, got (0, 1)");
  CHECK_ERROR(conv2d(x, w, {}, {.padding = {0, -1}}), ValueError, "padding must be at least 0");
  CHECK_ERROR(conv2d(x, w, {}, {.dilation = {1, 0}}), ValueError, "dilation");
  CHECK_ERROR(conv2d(x, w, {}, {.groups = 3}), ValueError, "3 groups do not divide 4");
  CHECK_ERROR(conv2d(x, w, {}, {.groups = 0}), ValueError, "0 groups");
  CHECK_ERROR(conv2d(x, w, {}, {.groups = 2}), ShapeError, "2 channels");
  CHECK_ERROR(conv2d(x, w, zeros({3})), ShapeError, "bias (2)");
  CHECK_ERROR(conv2d(x[0], w), ShapeError, "4 dimensions");
  CHECK_ERROR(max_pool2d(x, {4, 4}), ValueError, "spans 4");
  CHECK_ERROR(max_pool2d(x, {2, 2}, {1, 1}, {2, 2}), ValueError, "more than half");
  CHECK_ERROR(avg_pool2d(x, {0, 2}), ValueError, "kernel");
}

TEST_CASE("tensor: nothing and single numbers") {
  ON_EVERY_DEVICE(on);
  const Tensor none = zeros({0, 3}, kFloat64);
  CHECK(none.sum().item() == 0);
  CHECK(std::isnan(none.mean().item()));
  CHECK_ERROR(none.max(), ValueError, "float64 (0, 3) on " + str(on(0)) + " has no elements");
  CHECK_ERROR(none.argmax(), ValueError, "no elements");
  CHECK_ERROR(max(none, 0), ValueError, "dimension 0");
  CHECK(max(none, 1).first.sizes() == Shape{0});
  CHECK(has_values(none.sum({0}), {0, 0, 0}));
  CHECK(has_values(none.mean({0}), {NAN, NAN, NAN}));
  CHECK(has_values(zeros({2, 0}, kFloat64).matmul(zeros({0, 3}, kFloat64)), std::vector<double>(6)));
  CHECK(std::isnan(mse_loss(none, none).item()));
  CHECK(std::isnan(cross_entropy(none, zeros({0}, kInt64)).item()));
  CHECK(cross_entropy(none, zeros({0}, kInt64), Reduction::Sum).item() == 0);
  CHECK(none.split(2).size() == 1);
  CHECK(none.chunk(2).size() == 2);
  CHECK(none.to_vector().empty());
  CHECK(unbind(none).empty());

  const Tensor one = scalar_tensor(2.5, kFloat64);
  CHECK(one.dim() == 0);
  CHECK(one.numel() == 1);
  CHECK_ERROR(one.matmul(zeros({1}, kFloat64)), ShapeError, "0-dim");
  CHECK_ERROR(cat({one, one}), ShapeError, "0-dim");
  CHECK_ERROR(one[0], ShapeError, "0-dim");
  CHECK_ERROR(unbind(one), ShapeError, "0-dim");
  CHECK_ERROR(one.transpose(0, 1), IndexError, "transpose");
  CHECK(one.sum({-1}).item() == 2.5);
  CHECK(stack({one, one}).sizes() == Shape{2});
  CHECK((one + one).item() == 5);
  CHECK(max(one, 0).second.item<int>() == 0);
  CHECK(one.flatten().sizes() == Shape{1});
}

TEST_CASE("tensor: views share memory, and copies do not") {
  ON_EVERY_DEVICE(on);
  Tensor x = arange(12).reshape({3, 4});
  CHECK(x.strides() == Shape{4, 1});
  const Tensor t = x.t();
  CHECK(t.strides() == Shape{1, 4});
  CHECK_FALSE(t.is_contiguous());
  CHECK(t.data_ptr() == x.data_ptr());
  CHECK(has_values(t, {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  CHECK(t.contiguous().is_contiguous());
  CHECK(x.contiguous().is_same(x));

  const Tensor part = x.narrow(1, 1, 2);
  CHECK(part.storage_offset() == 1);
  CHECK_ERROR(part.view({6}), ShapeError, "(3, 2) with strides (4, 1) cannot be shown as (6)");
  CHECK_ERROR(t.view({12}), ShapeError, "use reshape");
  CHECK(part.view({3, 1, 2}).data_ptr() == part.data_ptr());
  CHECK(t.view({4, 3, 1}).strides()[1] == 4);
  CHECK(x.view({2, 6}).data_ptr() == x.data_ptr());
  const Tensor copy = part.reshape({6});
  CHECK(has_values(copy, {1, 2, 5, 6, 9, 10}));
  x.fill_(7);
  CHECK(has_values(copy, {1, 2, 5, 6, 9, 10}));
  CHECK(has_values(part[2], {7, 7}));

  // pytorch: cutting a run that several dimensions form together.
  const Tensor cube = arange(24).reshape({2, 3, 4});
  CHECK(cube.permute({1, 2, 0}).reshape({12, 2}).strides() == Shape{1, 12});
  CHECK(cube.permute({2, 0, 1}).view({4, 6}).strides() == Shape{1, 4});
  CHECK(has_values(cube.permute({2, 0, 1}).view({2, 2, 6})[1][1], {3, 7, 11, 15, 19, 23}));
  CHECK_ERROR(cube.permute({1, 0, 2}).view({6, 4}), ShapeError, "view");
  CHECK(cube.slice(2, {}, {}, 2).view({6, 2}).strides() == Shape{4, 2});

  CHECK(x.unsqueeze(1).sizes() == Shape{3, 1, 4});
  CHECK(x.unsqueeze(-1).sizes() == Shape{3, 4, 1});
  CHECK(x.unsqueeze(0).squeeze(1).sizes() == Shape{1, 3, 4});
  CHECK(x.unsqueeze(0).squeeze().sizes() == Shape{3, 4});
  CHECK(cube.flatten(0, 1).sizes() == Shape{6, 4});
  CHECK(tensor({1, 2}).unsqueeze(1).expand({3, -1, 2}).strides() == Shape{0, 1, 0});

  // A view keeps the memory of a base that is gone.
  const std::size_t before = memory_stats(on(0)).allocated;
  {
    Tensor view;
    {
      const Tensor base = arange(100'000);
      view = base.slice(0, 99'990, {}, 3);
    }
    CHECK(has_values(view, {99990, 99993, 99996, 99999}));
    CHECK(memory_stats(on(0)).allocated > before + 700'000);
  }
  CHECK(memory_stats(on(0)).allocated == before);
}

TEST_CASE("tensor: slices are Python's") {
  ON_EVERY_DEVICE(on);
  const auto python = [](std::int64_t n, std::optional<std::int64_t> start, std::optional<std::int64_t> end,
                         std::int64_t step) {
    // PySlice_AdjustIndices.
    const auto adjust = [&](std::int64_t i) {
      if (i < 0) {
        i += n;
        return i < 0 ? (step < 0 ? -1 : 0) : i;
      }
      return i >= n ? (step < 0 ? n - 1 : n) : i;
    };
    const std::int64_t from = start ? adjust(*start) : step < 0 ? n - 1 : 0;
    const std::int64_t to = end ? adjust(*end) : step < 0 ? -1 : n;
    std::vector<double> wanted;
    for (std::int64_t i = from; step < 0 ? i > to : i < to; i += step) wanted.push_back(static_cast<double>(i));
    return wanted;
  };
  std::vector<std::optional<std::int64_t>> bounds = {std::nullopt};
  for (std::int64_t i = -7; i <= 7; ++i) bounds.emplace_back(i);
  int wrong = 0;
  for (const std::int64_t n : {0, 1, 5}) {
    const Tensor x = arange(n).to(kFloat64).requires_grad_();
    for (const auto& start : bounds) {
      for (const auto& end : bounds) {
        for (const std::int64_t step : {-6, -3, -2, -1, 1, 2, 3, 6}) {
          const Tensor y = x.slice(0, start, end, step);
          const std::vector<double> wanted = python(n, start, end, step);
          std::vector<double> gradient(static_cast<std::size_t>(n));
          for (const double i : wanted) gradient[static_cast<std::size_t>(i)] = 2;
          y.backward(full(y.sizes(), 2, kFloat64));
          wrong += !has_values(y, wanted) || !has_values(x.grad(), gradient);
          x.zero_grad();
        }
      }
    }
  }
  CHECK(wrong == 0);
  const Tensor x = arange(12).reshape({3, 4});
  CHECK(has_values(x.slice(1, -1, {}, -2).slice(0, {}, {}, -1), {11, 9, 7, 5, 3, 1}));
}

TEST_CASE("tensor: dtypes promote as in PyTorch") {
  ON_EVERY_DEVICE(on);
  constexpr DType kAll[] = {kBool, kUInt8, kInt32, kInt64, kFloat32, kFloat64};
  const std::string letters = "builfd";
  // torch.result_type of PyTorch 1.13; a row per dtype of the first operand.
  const char* same_rank[] = {"builfd", "uuilfd", "iiilfd", "llllfd", "fffffd", "dddddd"};
  const char* with_zero_dim[] = {"builfd", "uuuufd", "iiiifd", "llllfd", "ffffff", "dddddd"};
  const char* with_scalar[] = {"blf", "uuf", "iif", "llf", "fff", "ddd"};
  const Scalar scalars[] = {true, 1, 1.5};
  const auto letter = [&](const Tensor& t) { return letters[static_cast<std::size_t>(t.dtype())]; };
  for (int i = 0; i < 6; ++i) {
    const Tensor dims = ones({2}, kAll[i]);
    const Tensor zero_dim = ones({}, kAll[i]);
    for (int j = 0; j < 6; ++j) {
      INFO(name_of(kAll[i]) << " and " << name_of(kAll[j]));
      CHECK(letter(dims + ones({2}, kAll[j])) == same_rank[i][j]);
      CHECK(letter(zero_dim + ones({}, kAll[j])) == same_rank[i][j]);
      CHECK(letter(dims + ones({}, kAll[j])) == with_zero_dim[i][j]);
      CHECK(letter(ones({}, kAll[j]) + dims) == with_zero_dim[i][j]);
      CHECK(letter(where(gt(dims, 0), dims, ones({}, kAll[j]))) == with_zero_dim[i][j]);
      CHECK(gt(dims, ones({2}, kAll[j])).dtype() == kBool);
      const DType divided = (dims / ones({2}, kAll[j])).dtype();
      CHECK(divided == (i == 5 || j == 5 ? kFloat64 : kFloat32));
    }
    for (int j = 0; j < 3; ++j) {
      INFO(name_of(kAll[i]) << " and scalar " << j);
      CHECK(letter(dims + scalars[j]) == with_scalar[i][j]);
      CHECK(letter(zero_dim * scalars[j]) == with_scalar[i][j]);
    }
    CHECK(letter(exp(dims)) == (i < 5 ? 'f' : 'd'));
    CHECK(letter(sum(dims)) == (i < 4 ? 'l' : letters[i]));
    CHECK(letter(cat({dims, ones({2}, kFloat32)})) == (i < 5 ? 'f' : 'd'));
  }
  CHECK((tensor({1, 2}) + 0.5).to_vector() == std::vector<double>{1.5, 2.5});
  CHECK((tensor({7}) / 2).item() == 3.5);
  CHECK(has_values(tensor({1, 2}).to(kUInt8) + 255, {0, 1}));

  // The gradient has the leaf's dtype.
  const Tensor x = ones({2}).requires_grad_();
  (x * ones({2}, kFloat64)).sum().backward();
  CHECK(x.grad().dtype() == kFloat32);
}

TEST_CASE("tensor: reading and converting") {
  ON_EVERY_DEVICE(on);
  const Tensor x = tensor({-1.75, 0.0, 2.5, 300.0});
  CHECK(x.to(kInt32).to_vector<std::int32_t>() == std::vector<std::int32_t>{-1, 0, 2, 300});
  CHECK(x.to(kBool).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 0, 1, 1});
  CHECK(x.to(kFloat32).is_same(x));
  CHECK(x.to_vector<std::int64_t>() == std::vector<std::int64_t>{-1, 0, 2, 300});
  CHECK(x[2].item<int>() == 2);
  CHECK(x[2].item<float>() == 2.5F);
  CHECK(scalar_tensor(true, kBool).item<bool>());
  CHECK(scalar_tensor((std::int64_t{1} << 62) + 1, kInt64).item<std::int64_t>() == (std::int64_t{1} << 62) + 1);
  CHECK(has_values(arange(1, 2.9, 0.5, kFloat64), {1, 1.5, 2, 2.5}));
  CHECK(has_values(arange(5, 0, -2), {5, 3, 1}));
  CHECK(has_values(eye(2), {1, 0, 0, 1}));
  CHECK(eye(0).sizes() == Shape{0, 0});
  CHECK(has_values(full({2}, 3, kInt32), {3, 3}));
  CHECK(x.nbytes() == 16);
  CHECK(allclose(x, x * (1 + 4e-6) + 4e-9));
  CHECK_FALSE(allclose(x, x + 1e-3));
  CHECK_FALSE(equal(x, x.to(kFloat64)));
  CHECK_FALSE(equal(tensor({NAN}), tensor({NAN})));
  CHECK_FALSE(allclose(tensor({NAN}), tensor({NAN})));
  CHECK(allclose(tensor({NAN, INFINITY}), tensor({NAN, INFINITY}), 1e-5, 1e-8, true));
  CHECK_FALSE(allclose(tensor({INFINITY}), tensor({-INFINITY})));
  CHECK_FALSE(allclose(tensor({1.0}), tensor({INFINITY})));
}

TEST_CASE("tensor: printing") {
  ON_EVERY_DEVICE(on);
  const auto print = [](const Tensor& t) {
    std::ostringstream out;
    out << t;
    return out.str();
  };
  CHECK(print(Tensor()) == "tensor(undefined)");
  CHECK(print(scalar_tensor(2.5)) == "tensor(2.5, float32 () on " + str(on(0)) + ")");
  CHECK(print(tensor({1, -2, 3})) == "tensor([1, -2, 3], int64 (3) on " + str(on(0)) + ")");
  CHECK(print(tensor({1, 0}).to(kBool)) == "tensor([true, false], bool (2) on " + str(on(0)) + ")");
  CHECK(print(f64({1, 2, 3, 1e-7}, {2, 2})) ==
        "tensor([[1, 2],\n        [3, 1e-07]], float64 (2, 2) on " + str(on(0)) + ")");
  CHECK(print(zeros({0, 2})) == "tensor([], float32 (0, 2) on " + str(on(0)) + ")");
  CHECK(print(leaf({1})) == "tensor([1], float64 (1) on " + str(on(0)) + ", requires_grad)");
  CHECK(print(leaf({1}) * 2) == "tensor([2], float64 (1) on " + str(on(0)) + ", grad_fn=mul)");
  CHECK(print(arange(2000)) == "tensor([0, 1, 2, ..., 1997, 1998, 1999], int64 (2000) on " + str(on(0)) + ")");
  CHECK(print(tensor({1.0}, kFloat32, on(1))) == "tensor([1], float32 (1) on " + str(on(1)) + ")");
  CHECK(describe(Tensor()) == "undefined");
  CHECK(describe(zeros({2, 3})) == "float32 (2, 3) on " + str(on(0)));
}

TEST_CASE("tensor: set_data moves an identity") {
  ON_EVERY_DEVICE(on);
  const Tensor w = ones({2, 3}).requires_grad_();
  const Tensor same = w;
  w.sum().backward();
  w.set_data(full({2, 3}, 4, kFloat64, on(1)));
  CHECK(same.device() == on(1));
  CHECK(same.dtype() == kFloat64);
  CHECK(has_values(same, std::vector<double>(6, 4)));
  CHECK(same.requires_grad());
  CHECK(same.grad().device() == on(1));
  CHECK(same.grad().dtype() == kFloat64);
  (w * w).sum().backward();
  CHECK(has_values(w.grad(), std::vector<double>(6, 9)));

  CHECK_ERROR((w * 2).set_data(w), AutogradError, "leaf");
  CHECK_ERROR(zeros({2})[0].set_data(zeros({})), AutogradError, "no view");
  CHECK_ERROR(w.set_data(zeros({2, 3}, kInt64)), DTypeError, "int64");
  CHECK_ERROR(w.set_data(Tensor()), ValueError, "undefined");
}
