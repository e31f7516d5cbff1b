// Tensors put together.

#include <fmt/format.h>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {
namespace {

/// All in one dtype, checked to fit together along d.
std::vector<Tensor> fitting(std::span<const Tensor> tensors, int d) {
  const Tensor& first = tensors[0];
  DType type = first.dtype();
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    check_device("cat", {&first, &t});
    Shape wanted = first.sizes();
    if (t.dim() == first.dim()) wanted[d] = t.sizes()[d];
    if (t.sizes() != wanted) {
      throw ShapeError(fmt::format("cat: tensor {} is {} and does not fit {} but along dimension {}", i, str(t.sizes()),
                                   str(first.sizes()), d));
    }
    type = std::max(type, t.dtype());
  }
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) out.push_back(to(t, type));
  return out;
}

}  // namespace

Tensor cat(std::span<const Tensor> tensors, std::int64_t dim) {
  if (tensors.empty()) throw ValueError("cat: there are no tensors");
  for (const Tensor& t : tensors) check_defined("cat", "a tensor", t);
  if (tensors[0].dim() == 0) throw ShapeError("cat: 0-dim tensors cannot be put together; use stack");
  const int d = wrap_dim("cat", dim, tensors[0].dim());
  const std::vector<Tensor> parts = fitting(tensors, d);

  Shape shape = parts[0].sizes();
  shape[d] = 0;
  for (const Tensor& t : parts) shape[d] += t.sizes()[d];
  Tensor out = new_tensor(shape, parts[0].dtype(), parts[0].device());
  std::vector<std::int64_t> sizes;
  {
    const NoGradGuard no_grad;
    std::int64_t start = 0;
    for (const Tensor& t : parts) {
      const std::int64_t n = t.sizes()[d];
      kernels::Stream stream = stream_for(out.device());
      backend(out.device()).copy(stream, raw(narrow(out, d, start, n)), raw(t));
      sizes.push_back(n);
      start += n;
    }
  }
  bool any = false;
  for (const Tensor& t : parts) any = any || needs_grad(t);
  if (any) {
    record("cat", std::span(&out, 1), parts, [d, sizes](GradContext& c) {
      std::int64_t start = 0;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (c.needs(i)) c.set(i, narrow(c.grad(), d, start, sizes[i]));
        start += sizes[i];
      }
    });
  }
  return out;
}

Tensor cat(std::initializer_list<Tensor> tensors, std::int64_t dim) {
  return cat(std::span(tensors.begin(), tensors.size()), dim);
}

Tensor stack(std::span<const Tensor> tensors, std::int64_t dim) {
  if (tensors.empty()) throw ValueError("stack: there are no tensors");
  std::vector<Tensor> rows;
  for (const Tensor& t : tensors) {
    check_defined("stack", "a tensor", t);
    if (t.sizes() != tensors[0].sizes()) {
      throw ShapeError(fmt::format("stack: shapes {} and {} differ", str(tensors[0].sizes()), str(t.sizes())));
    }
    rows.push_back(unsqueeze(t, wrap_dim("stack", dim, t.dim() + 1)));
  }
  return cat(rows, wrap_dim("stack", dim, tensors[0].dim() + 1));
}

Tensor stack(std::initializer_list<Tensor> tensors, std::int64_t dim) {
  return stack(std::span(tensors.begin(), tensors.size()), dim);
}

std::vector<OpRecord> join_records() {
  return {
      {"cat", "tensors one after another",
       [] {
         auto call = [](std::int64_t d) { return [d](const Inputs& x) { return cat(x, d); }; };
         return std::vector<OpSample>{
             make_sample("torch.cat((x0, x1, x2), 0)", {sample({2, 3}), sample({0, 3}, 1), sample({1, 3}, 2)}, call(0)),
             make_sample("torch.cat((x0, x1), -1)", {sample({2, 3}), sample({2, 2}, 1)}, call(-1)),
             make_sample("torch.cat((x0, x1))", {sample({0, 3}), sample({0, 3}, 1)}, call(0))};
       }},
      {"stack", "tensors along a new dimension",
       [] {
         auto call = [](std::int64_t d) { return [d](const Inputs& x) { return stack(x, d); }; };
         return std::vector<OpSample>{
             make_sample("torch.stack((x0, x1), 1)", {sample({2, 3}), sample({2, 3}, 1)}, call(1)),
             make_sample("torch.stack((x0, x1))", {sample({}), sample({}, 1)}, call(0)),
             make_sample("torch.stack((x0, x1), -1)", {sample({0}), sample({0}, 1)}, call(-1))};
       }},
  };
}

}  // namespace tandem
