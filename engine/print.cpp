// Tensors as text.

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "autograd.h"
#include "ops.h"

namespace tandem {
namespace {

constexpr std::int64_t kShown = 1000;  // elements; larger tensors show their ends only
constexpr std::int64_t kEnds = 3;

std::string number(const Tensor& t) {
  if (t.dtype() == kBool) return t.item<bool>() ? "true" : "false";
  if (!is_floating(t.dtype())) return fmt::format("{}", t.item<std::int64_t>());
  return fmt::format("{:.4g}", t.item<double>());
}

void rows(const Tensor& t, bool shorten, int indent, std::string& out) {
  if (t.dim() == 0) {
    out += number(t);
    return;
  }
  const std::int64_t n = t.size(0);
  out += '[';
  for (std::int64_t i = 0; i < n; ++i) {
    if (i > 0) out += t.dim() > 1 ? ",\n" + std::string(static_cast<std::size_t>(indent) + 1, ' ') : ", ";
    if (shorten && n > 2 * kEnds && i == kEnds) {
      out += "...";
      i = n - kEnds - 1;
      continue;
    }
    rows(t[i], shorten, indent + 1, out);
  }
  out += ']';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& t) {
  if (!t.defined()) return out << "tensor(undefined)";
  std::string text = "tensor(";
  rows(t.detach().to(cpu()), t.numel() > kShown, 7, text);
  text += fmt::format(", {} {} on {}", name_of(t.dtype()), str(t.sizes()), str(t.device()));
  if (t.requires_grad()) text += t.is_leaf() ? ", requires_grad" : fmt::format(", grad_fn={}", t.grad_fn()->name());
  return out << text << ')';
}

}  // namespace tandem
