#pragma once
// The interface between the engine and a kind of device: one function per op family.
//
// Rules for every function:
// - Views are valid, of the shapes stated, and live on the stream's device. Nothing is allocated, nothing is checked
//   again, except index values, which are data: the first bad one goes into `stream.index_fault` (on a CUDA device,
//   into its queue), nothing is read or written out of bounds, and the affected results are zero.
// - Zero elements are fine everywhere.
// - "contiguous" means row-major without gaps; functions that do not say so take any strides.
// - `out` may be the very same view as an elementwise input, but not overlap one otherwise.
// - Results do not depend on `stream.threads`, on timing, or on the run.

#include <cstdint>

#include "math/ops.h"
#include "view.h"

namespace tandem::kernels {

/// The first index out of range that a kernel met: `value` at flat `position` of the index tensor, allowed
/// 0 <= value < `limit`. On a CUDA device, one of those that it met.
struct IndexFault {
  bool set = false;
  std::int64_t position = 0;
  std::int64_t value = 0;
  std::int64_t limit = 0;
};

namespace cuda {
class Queue;
}

/// Where a kernel runs. On a CPU device it runs at once, in the calling thread and up to `threads - 1` helpers. On a
/// CUDA device it is queued, and reports index faults and failures when the device is next waited for.
struct Stream {
  int device = 0;
  int threads = 1;
  IndexFault index_fault{};
  cuda::Queue* queue = nullptr;  ///< of a CUDA device
};

struct Conv2dArgs {
  std::int64_t stride[2] = {1, 1};
  std::int64_t padding[2] = {0, 0};
  std::int64_t dilation[2] = {1, 1};
  std::int64_t groups = 1;
};

struct Pool2dArgs {
  std::int64_t kernel[2] = {1, 1};
  std::int64_t stride[2] = {1, 1};
  std::int64_t padding[2] = {0, 0};
};

/// Draws come from Philox4x32-10 with key `seed`; element i of a draw is number j = `skip` + i of those that the blocks
/// from `offset` on of subsequence `stream` make: word j % 4 of block `offset + j / 4` (see math/philox.h). float64 and
/// randint draws have 2 elements per block. `skip` is less than the elements per block.
struct PhiloxState {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t offset = 0;
  std::int64_t skip = 0;
};

/// v = momentum v + (1 - dampening) (g + weight_decay p), or v = g + weight_decay p at `first`;
/// p -= lr (nesterov ? g + weight_decay p + momentum v : v). With momentum 0 no v is used.
struct SgdArgs {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, first;
};

/// Adam (Kingma and Ba 2015, algorithm 1); `decoupled`: AdamW (Loshchilov and Hutter 2019). `step` counts from 1.
struct AdamArgs {
  double lr, beta1, beta2, eps, weight_decay;
  std::int64_t step;
  bool decoupled;
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // Data movement. `in` broadcasts to `out`; dtypes may differ (float to integer truncates toward zero).
  virtual void fill(Stream&, const View& out, const Scalar& value) const = 0;
  virtual void copy(Stream&, const View& out, const View& in) const = 0;
  /// out[i] = start + i * step, 1-D.
  virtual void arange(Stream&, const View& out, const Scalar& start, const Scalar& step) const = 0;

  // Elementwise. Operands broadcast to `out`'s shape; operands and result have one dtype unless said otherwise.
  virtual void unary(Stream&, UnaryOp, const View& out, const View& in) const = 0;
  /// out = g * f'(saved), `saved` being the op's input or output as its functor says. Floating dtypes.
  virtual void unary_backward(Stream&, UnaryOp, const View& out, const View& g, const View& saved) const = 0;
  virtual void binary(Stream&, BinaryOp, const View& out, const Operand& a, const Operand& b) const = 0;
  /// `out` is bool.
  virtual void compare(Stream&, CompareOp, const View& out, const Operand& a, const Operand& b) const = 0;
  /// out = min(max(in, lo), hi); NaN stays NaN.
  virtual void clamp(Stream&, const View& out, const View& in, const Scalar& lo, const Scalar& hi) const = 0;
  /// `cond` is bool.
  virtual void where(Stream&, const View& out, const View& cond, const Operand& a, const Operand& b) const = 0;

  // Reductions. `out` has `in`'s rank, with size 1 where reduced.
  virtual void reduce(Stream&, ReduceOp, const View& out, const View& in) const = 0;
  /// Extreme over one dimension, with its position; the first one wins, NaN counts as extreme. Max or Min.
  virtual void reduce_index(Stream&, ReduceOp, const View& values, const View& indices, const View& in,
                            int dim) const = 0;

  // Matrix products: c = beta c + a b, with c (m, n) or (batch, m, n), floating. Every view has unit stride in one of
  // its last two dimensions, and c in its last; a batch stride may be zero in a and b.
  virtual void gemm(Stream&, const View& c, const View& a, const View& b, double beta) const = 0;

  // Softmax over `dim`; contiguous. `log`: log_softmax. Backward takes the forward's output y.
  virtual void softmax(Stream&, const View& out, const View& in, int dim, bool log) const = 0;
  virtual void softmax_backward(Stream&, const View& gx, const View& g, const View& y, int dim, bool log) const = 0;
  /// Per row of x (n, c): loss = log(sum exp x) - x[target], lse = log(sum exp x); loss 0 where target == ignore.
  /// Contiguous; target int64 (n).
  virtual void cross_entropy(Stream&, const View& loss, const View& lse, const View& x, const View& target,
                             std::int64_t ignore) const = 0;
  /// gx = (exp(x - lse) - onehot(target)) * g[row]; 0 in ignored rows.
  virtual void cross_entropy_backward(Stream&, const View& gx, const View& g, const View& x, const View& lse,
                                      const View& target, std::int64_t ignore) const = 0;

  // Convolution: x (n, ci, h, w), w (co, ci / groups, kh, kw), y (n, co, oh, ow); contiguous. `workspace` has the
  // bytes that conv2d_workspace names, for one of the three calls.
  virtual std::int64_t conv2d_workspace(Stream&, const View& x, const View& w, const View& y,
                                        const Conv2dArgs&) const = 0;
  /// `bias` (co) may have null data.
  virtual void conv2d(Stream&, const View& y, const View& x, const View& w, const View& bias, const Conv2dArgs&,
                      void* workspace) const = 0;
  virtual void conv2d_input(Stream&, const View& gx, const View& gy, const View& w, const Conv2dArgs&,
                            void* workspace) const = 0;
  virtual void conv2d_weight(Stream&, const View& gw, const View& gy, const View& x, const Conv2dArgs&,
                             void* workspace) const = 0;

  // Pooling over (n, c, h, w); contiguous. `index` is int64: h * W + w of the element taken (NaN wins, first wins).
  virtual void max_pool2d(Stream&, const View& y, const View& index, const View& x, const Pool2dArgs&) const = 0;
  /// gx = sum of gy over the windows that took the element.
  virtual void max_pool2d_backward(Stream&, const View& gx, const View& gy, const View& index) const = 0;
  /// y[o] = x[index[o]], the transpose of max_pool2d_backward.
  virtual void max_pool2d_take(Stream&, const View& y, const View& x, const View& index) const = 0;
  /// Padding counts in the divisor, as PyTorch's default.
  virtual void avg_pool2d(Stream&, const View& y, const View& x, const Pool2dArgs&) const = 0;
  virtual void avg_pool2d_backward(Stream&, const View& gx, const View& gy, const Pool2dArgs&) const = 0;

  // Normalisation; contiguous. Channels of x (n, c, inner); w and b (c) may have null data.
  /// Biased variance, two passes.
  virtual void channel_stats(Stream&, const View& mean, const View& var, const View& x) const = 0;
  /// out = (x - mean) * invstd * w + b.
  virtual void batch_norm(Stream&, const View& out, const View& x, const View& mean, const View& invstd, const View& w,
                          const View& b) const = 0;
  /// Outputs with null data are skipped. `training`: mean and invstd depend on x.
  virtual void batch_norm_backward(Stream&, const View& gx, const View& gw, const View& gb, const View& g,
                                   const View& x, const View& mean, const View& invstd, const View& w,
                                   bool training) const = 0;
  /// Rows of x (n, c); writes mean (n) and invstd (n) = 1 / sqrt(var + eps).
  virtual void layer_norm(Stream&, const View& out, const View& mean, const View& invstd, const View& x, const View& w,
                          const View& b, double eps) const = 0;
  virtual void layer_norm_backward(Stream&, const View& gx, const View& gw, const View& gb, const View& g,
                                   const View& x, const View& mean, const View& invstd, const View& w) const = 0;

  // Indexing along `dim`; `index` is int64.
  /// out[.., i, ..] = in[.., index[i], ..]; index 1-D.
  virtual void index_select(Stream&, const View& out, const View& in, int dim, const View& index) const = 0;
  /// out[.., index[i], ..] += src[.., i, ..], i ascending.
  virtual void index_add(Stream&, const View& out, int dim, const View& index, const View& src) const = 0;
  /// out[i.., j, k..] = in[i.., index[i.., j, k..], k..]; index has out's shape.
  virtual void gather(Stream&, const View& out, const View& in, int dim, const View& index) const = 0;
  /// out[i.., index[i.., j, k..], k..] += src[i.., j, k..], in row-major order of src.
  virtual void scatter_add(Stream&, const View& out, int dim, const View& index, const View& src) const = 0;

  // Random numbers; contiguous.
  /// lo <= x < hi; floating.
  virtual void uniform(Stream&, const View& out, PhiloxState, double lo, double hi) const = 0;
  /// Box-Muller; floating.
  virtual void normal(Stream&, const View& out, PhiloxState, double mean, double std) const = 0;
  /// lo <= x < hi; integer dtypes and floating.
  virtual void randint(Stream&, const View& out, PhiloxState, std::int64_t lo, std::int64_t hi) const = 0;
  /// mask (bool) is true with probability 1 - p; out = mask ? in / (1 - p) : 0.
  virtual void dropout(Stream&, const View& out, const View& mask, const View& in, PhiloxState, double p) const = 0;

  // Optimizer updates in place; contiguous, floating, all of one dtype and size.
  virtual void sgd_step(Stream&, const View& p, const View& g, const View& velocity, const SgdArgs&) const = 0;
  virtual void adam_step(Stream&, const View& p, const View& g, const View& m, const View& v,
                         const AdamArgs&) const = 0;
};

/// The CPU backend: SIMD loops chosen for this processor at first use.
const Backend& cpu_backend();
/// The CUDA backend, for streams with a queue.
const Backend& cuda_backend();

}  // namespace tandem::kernels
