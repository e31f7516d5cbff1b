// Softmax and the losses.

#include <fmt/format.h>

#include "../op_record.h"
#include "../ops_internal.h"

namespace tandem {
namespace {

Tensor softmax_of(const char* name, const Tensor& x, std::int64_t dim, bool log) {
  check_floating(name, x);
  const int d = wrap_dim(name, dim, x.dim());
  if (x.dim() == 0) return reshape(softmax_of(name, reshape(x, {1}), 0, log), {});
  Tensor out = new_tensor(x.sizes(), x.dtype(), x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).softmax(stream, raw(out), raw(contiguous(x.detach())), d, log);
  if (needs_grad(x)) {
    record(name, out, {x}, [y = saved_output(out), d, log](GradContext& c) {
      const Tensor s = y.get(c);
      const Tensor& g = c.grad();
      if (context().grad_enabled) {
        c.set(0, log ? sub(g, mul(exp(s), sum(g, {d}, true))) : mul(s, sub(g, sum(mul(g, s), {d}, true))));
        return;
      }
      Tensor gx = new_tensor(g.sizes(), g.dtype(), g.device());
      kernels::Stream on = stream_for(g.device());
      backend(g.device()).softmax_backward(on, raw(gx), raw(contiguous(g)), raw(s), d, log);
      c.set(0, std::move(gx));
    });
  }
  return out;
}

/// Rows of class scores, and their targets, of an input (n, c, d1, ...), (n, c) or (c).
struct Rows {
  Tensor scores;  // (rows, c), contiguous
  Tensor target;  // (rows)
};

Rows as_rows(const char* op, const Tensor& x, const Tensor& target) {
  check_floating(op, x);
  check_defined(op, "the target", target);
  check_dtype(op, "the target", target, kInt64);
  check_device(op, {&x, &target});
  if (x.dim() == 0) throw ShapeError(fmt::format("{}: a 0-dim input has no classes", op));
  const int d = x.dim() == 1 ? 0 : 1;
  Shape wanted = x.sizes();
  wanted.erase(d);
  if (target.sizes() != wanted) {
    throw ShapeError(fmt::format("{}: wanted a target {} for an input {}, got {}", op, str(wanted), str(x.sizes()),
                                 str(target.sizes())));
  }
  const std::int64_t classes = x.sizes()[d];
  Shape order;
  for (int i = 0; i < x.dim(); ++i) {
    if (i != d) order.push_back(i);
  }
  order.push_back(d);
  const Tensor last = d == x.dim() - 1 ? x : permute(x, order);
  return {contiguous(reshape(last, {wanted.numel(), classes})), contiguous(reshape(target, {wanted.numel()}))};
}

Tensor reduced(const Tensor& loss, const Tensor& target, const Shape& shape, Reduction reduction, std::int64_t ignore) {
  if (reduction == Reduction::None) return reshape(loss, shape);
  if (reduction == Reduction::Sum) return sum(loss);
  return div(sum(loss), to(sum(ne(target, ignore)), loss.dtype()));
}

/// 1 at each row's target, 0 in ignored rows; and 1 for rows that count, as a column.
std::pair<Tensor, Tensor> one_hot(const Tensor& target, const Tensor& like, std::int64_t ignore) {
  const Tensor counts = unsqueeze(ne(target, ignore), 1);
  const Tensor ones_where = to(counts, like.dtype());
  const Tensor at = where(counts, unsqueeze(target, 1), 0);
  return {scatter_add(zeros_like(like), 1, at, ones_where), ones_where};
}

Tensor cross_entropy_rows(const Tensor& x, const Tensor& target, std::int64_t ignore) {
  Tensor loss = new_tensor({x.size(0)}, x.dtype(), x.device());
  Tensor lse = new_tensor({x.size(0)}, x.dtype(), x.device());
  kernels::Stream stream = stream_for(x.device());
  backend(x.device()).cross_entropy(stream, raw(loss), raw(lse), raw(x), raw(target), ignore);
  check_index_fault("cross_entropy", stream);
  if (needs_grad(x)) {
    record("cross_entropy", loss, {x},
           [x = saved(x), lse = saved(lse), target = saved(target), ignore](GradContext& c) {
             const Tensor scores = x.get(c);
             if (context().grad_enabled) {
               const auto [hot, counts] = one_hot(target.get(c), scores.detach(), ignore);
               c.set(0, mul(unsqueeze(c.grad(), 1), sub(mul(softmax(scores, 1), counts), hot)));
               return;
             }
             Tensor gx = new_tensor(scores.sizes(), scores.dtype(), scores.device());
             kernels::Stream on = stream_for(scores.device());
             backend(scores.device())
                 .cross_entropy_backward(on, raw(gx), raw(contiguous(c.grad())), raw(scores), raw(lse.get(c)),
                                         raw(target.get(c)), ignore);
             c.set(0, std::move(gx));
           });
  }
  return loss;
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) { return softmax_of("softmax", x, dim, false); }
Tensor log_softmax(const Tensor& x, std::int64_t dim) { return softmax_of("log_softmax", x, dim, true); }

Tensor cross_entropy(const Tensor& x, const Tensor& target, Reduction reduction, std::int64_t ignore_index) {
  const Rows rows = as_rows("cross_entropy", x, target);
  return reduced(cross_entropy_rows(rows.scores, rows.target, ignore_index), rows.target, target.sizes(), reduction,
                 ignore_index);
}

Tensor nll_loss(const Tensor& log_p, const Tensor& target, Reduction reduction, std::int64_t ignore_index) {
  const Rows rows = as_rows("nll_loss", log_p, target);
  const Tensor counts = ne(rows.target, ignore_index);
  const Tensor at = where(counts, rows.target, 0);
  const std::int64_t classes = rows.scores.size(1);
  if (at.numel() > 0 && (min(at).item<std::int64_t>() < 0 || max(at).item<std::int64_t>() >= classes)) {
    throw IndexError(fmt::format("nll_loss: targets from {} to {} are out of range: wanted 0 to {}, or {} to ignore",
                                 min(at).item<std::int64_t>(), max(at).item<std::int64_t>(), classes - 1,
                                 ignore_index));
  }
  const Tensor picked = squeeze(gather(rows.scores, 1, unsqueeze(at, 1)), 1);
  return reduced(where(counts, neg(picked), 0), rows.target, target.sizes(), reduction, ignore_index);
}

Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction) {
  check_floating("mse_loss", x);
  check_floating("mse_loss", y);
  if (x.sizes() != y.sizes()) {
    throw ShapeError(fmt::format("mse_loss: wanted equal shapes, got {} and {}; nothing is broadcast here",
                                 str(x.sizes()), str(y.sizes())));
  }
  Tensor squares = square(sub(x, y));
  if (reduction == Reduction::None) return squares;
  return reduction == Reduction::Sum ? sum(squares) : mean(squares);
}

namespace {

template <Tensor (*loss)(const Tensor&, const Tensor&, Reduction, std::int64_t)>
std::vector<OpSample> class_loss_samples(const std::string& f) {
  const auto with = [](Reduction r, std::int64_t ignore) {
    return [r, ignore](const Inputs& x) { return loss(x[0], x[1], r, ignore); };
  };
  return {
      make_sample(f + "(x0, x1)", {sample({3, 4}), sample_index({3}, 4)}, with(Reduction::Mean, -100)),
      make_sample(f + "(x0, x1, reduction='sum', ignore_index=2)", {sample({5, 4}), sample_index({5}, 4)},
                  with(Reduction::Sum, 2)),
      make_sample(f + "(x0, x1, ignore_index=0)", {sample({2, 3, 2}), sample_index({2, 2}, 3)},
                  with(Reduction::Mean, 0)),
      make_sample(f + "(x0, x1, reduction='none')", {sample({0, 4}), sample_index({0}, 4)},
                  with(Reduction::None, -100)),
  };
}

}  // namespace

std::vector<OpRecord> loss_records() {
  return {
      {"softmax", "e^x over its sum along dim",
       [] {
         auto call = [](std::int64_t d) { return [d](const Inputs& x) { return softmax(x[0], d); }; };
         return std::vector<OpSample>{make_sample("x0.softmax(-1)", {sample({3, 4})}, call(-1)),
                                      make_sample("x0.softmax(1)", {sample({2, 3, 2})}, call(1)),
                                      make_sample("x0.softmax(0)", {sample({})}, call(0)),
                                      make_sample("x0.softmax(1)", {sample({0, 3})}, call(1))};
       }},
      {"log_softmax", "logarithm of softmax",
       [] {
         auto call = [](std::int64_t d) { return [d](const Inputs& x) { return log_softmax(x[0], d); }; };
         return std::vector<OpSample>{make_sample("x0.log_softmax(-1)", {sample({3, 4})}, call(-1)),
                                      make_sample("x0.log_softmax(0)", {sample({3, 4})}, call(0)),
                                      make_sample("x0.log_softmax(1)", {sample({0, 3})}, call(1))};
       }},
      {"cross_entropy", "-log softmax(x)[target]", [] { return class_loss_samples<cross_entropy>("F.cross_entropy"); }},
      {"nll_loss", "-log_p[target]", [] { return class_loss_samples<nll_loss>("F.nll_loss"); }},
      {"mse_loss", "mean of (x - y)^2",
       [] {
         auto call = [](Reduction r) { return [r](const Inputs& x) { return mse_loss(x[0], x[1], r); }; };
         return std::vector<OpSample>{
             make_sample("F.mse_loss(x0, x1)", {sample({3, 4}), sample({3, 4}, 2)}, call(Reduction::Mean)),
             make_sample("F.mse_loss(x0, x1, reduction='sum')", {sample({3}), sample({3}, 2)}, call(Reduction::Sum)),
             make_sample("F.mse_loss(x0, x1, reduction='none')", {sample({0, 2}), sample({0, 2}, 2)},
                         call(Reduction::None))};
       }},
  };
}

}  // namespace tandem
