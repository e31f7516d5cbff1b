#pragma once
// Functions on tensors. Names, argument order and semantics are PyTorch's.
//
// For all of them, unless said otherwise:
// - Tensors of one call are on one device (else DeviceError); a 0-dim CPU tensor is not an exception.
// - Dtypes promote as in PyTorch: the kind bool < integer < floating decides, tensors of one or more dims count before
//   0-dim tensors, these before scalars; within a kind the wider type wins. Integer operands of a floating function
//   give float32.
// - Shapes of elementwise functions broadcast: aligned at the right, size 1 stretches; else ShapeError.
// - Dimensions count from 0, or from the end with -1; else IndexError.
// - The result is a new tensor, and differentiable, twice too, where its dtype is floating.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../kernels/math/ops.h"
#include "tensor.h"

namespace tandem {

class ReplicaExchange;

// ---------------------------------------------------------------- creation
/// Uninitialised.
Tensor empty(const Shape& shape, DType dtype = kFloat32, Device device = get_default_device());
Tensor zeros(const Shape& shape, DType dtype = kFloat32, Device device = get_default_device());
Tensor ones(const Shape& shape, DType dtype = kFloat32, Device device = get_default_device());
Tensor full(const Shape& shape, const Scalar& value, DType dtype = kFloat32, Device device = get_default_device());
Tensor empty_like(const Tensor& t);
Tensor zeros_like(const Tensor& t);
Tensor ones_like(const Tensor& t);
/// [start, end) by step, 1-D. ValueError for step 0 or a step away from `end`.
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step = 1, DType dtype = kInt64,
              Device device = get_default_device());
inline Tensor arange(const Scalar& end) { return arange(0, end); }
Tensor eye(std::int64_t n, DType dtype = kFloat32, Device device = get_default_device());
/// Copies `values` in row-major order. ShapeError when their number is not the shape's.
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, Device device = get_default_device());
/// A 1-D tensor of the values: tensor({1.0, 2.0}) is float32, tensor({1, 2}) int64.
Tensor tensor(std::initializer_list<double> values, DType dtype = kFloat32, Device device = get_default_device());
Tensor tensor(std::initializer_list<int> values, DType dtype = kInt64, Device device = get_default_device());
/// A 0-dim tensor.
Tensor scalar_tensor(const Scalar& value, DType dtype = kFloat32, Device device = get_default_device());
/// Draws from the generator of the device (random.h).
Tensor rand(const Shape& shape, DType dtype = kFloat32, Device device = get_default_device());
Tensor randn(const Shape& shape, DType dtype = kFloat32, Device device = get_default_device());
/// lo <= x < hi.
Tensor randint(std::int64_t lo, std::int64_t hi, const Shape& shape, DType dtype = kInt64,
               Device device = get_default_device());

// ---------------------------------------------------------------- elementwise, one operand
#define TANDEM_DECLARE_UNARY(Functor, name) Tensor name(const Tensor& x);
/// neg abs sign exp log sqrt rsqrt reciprocal square sin cos tanh sigmoid relu gelu silu. gelu is x Phi(x), exact.
/// Derivatives at kinks: relu'(0) = 0, abs'(0) = 0.
TANDEM_UNARY_OPS(TANDEM_DECLARE_UNARY)
#undef TANDEM_DECLARE_UNARY
/// min(max(x, lo), hi). The gradient passes where lo <= x <= hi. Without one bound pass nullopt.
Tensor clamp(const Tensor& x, std::optional<Scalar> lo, std::optional<Scalar> hi);
/// True where x is NaN.
Tensor isnan(const Tensor& x);

// ---------------------------------------------------------------- elementwise, two operands
Tensor add(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, const Scalar& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Scalar& b);
Tensor sub(const Scalar& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Scalar& b);
/// True division: integers give float32.
Tensor div(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Scalar& b);
Tensor div(const Scalar& a, const Tensor& b);
/// pow(0, 0) = 1. ValueError for integers to a negative scalar power.
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Scalar& b);
Tensor pow(const Scalar& a, const Tensor& b);
/// NaN wins; the gradient of a tie is shared half and half.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);

inline Tensor operator-(const Tensor& a) { return neg(a); }
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, const Scalar& b) { return add(a, b); }
inline Tensor operator+(const Scalar& a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, const Scalar& b) { return sub(a, b); }
inline Tensor operator-(const Scalar& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, const Scalar& b) { return mul(a, b); }
inline Tensor operator*(const Scalar& a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, const Scalar& b) { return div(a, b); }
inline Tensor operator/(const Scalar& a, const Tensor& b) { return div(a, b); }

// ---------------------------------------------------------------- comparison and selection; bool results, no gradient
Tensor eq(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, const Scalar& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Scalar& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Scalar& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Scalar& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Scalar& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Scalar& b);
/// cond ? a : b, elementwise; cond is bool. The branch not taken gets gradient 0.
Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& cond, const Tensor& a, const Scalar& b);
Tensor where(const Tensor& cond, const Scalar& a, const Tensor& b);
/// Same shape, dtype and elements.
bool equal(const Tensor& a, const Tensor& b);
/// Same shape, and |a - b| <= atol + rtol |b| everywhere; NaN equals nothing unless equal_nan.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);

// ---------------------------------------------------------------- reductions; without the argument dims: over all
/// bool and integers sum into int64. The sum of nothing is 0.
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, const Shape& dims, bool keepdim = false);
/// Floating only. The mean of nothing is NaN.
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, const Shape& dims, bool keepdim = false);
/// Floating only; the sum of squared deviations over max(0, n - correction): NaN for one element with correction 1.
Tensor var(const Tensor& x);
Tensor var(const Tensor& x, const Shape& dims, std::int64_t correction = 1, bool keepdim = false);
/// Over all elements; the gradient is shared evenly among ties. ValueError for an empty tensor.
Tensor max(const Tensor& x);
Tensor min(const Tensor& x);
/// Values and int64 positions along `dim`; the first extreme wins, NaN counts as extreme; the gradient goes there.
std::pair<Tensor, Tensor> max(const Tensor& x, std::int64_t dim, bool keepdim = false);
std::pair<Tensor, Tensor> min(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// int64; over all elements in row-major order, or along `dim`.
Tensor argmax(const Tensor& x);
Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim = false);
/// x summed down to `shape`, which broadcasts to x's shape: the transpose of expand.
Tensor sum_to(const Tensor& x, const Shape& shape);
/// sqrt(sum of x^2); the gradient at 0 is 0.
Tensor norm(const Tensor& x);

// ---------------------------------------------------------------- products
/// As PyTorch: 1-D and 2-D operands as vectors and matrices, more dims as batches that broadcast. 0-dim: ShapeError.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x W^T + b: x (..., in), weight (out, in), bias (out) or undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// ---------------------------------------------------------------- shape; all views of x, except as noted
/// One size may be -1: inferred. A view where the strides allow, else a copy.
Tensor reshape(const Tensor& x, const Shape& shape);
/// As reshape, but a ShapeError where a copy would be needed.
Tensor view(const Tensor& x, const Shape& shape);
Tensor flatten(const Tensor& x, std::int64_t start_dim = 0, std::int64_t end_dim = -1);
Tensor permute(const Tensor& x, const Shape& dims);
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
/// Drops dimensions of size 1: all of them, or `dim` if its size is 1.
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, std::int64_t dim);
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
/// Stretches dimensions of size 1 with stride 0, and adds leading ones; -1 keeps a size.
Tensor expand(const Tensor& x, const Shape& shape);
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
/// x[start:end:step] along dim as Python slices; step may be negative, not 0.
Tensor slice(const Tensor& x, std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> end,
             std::int64_t step = 1);
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
/// Pieces of `size`, the last may be smaller; or of the given sizes. In-place changes of them cannot be recorded.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim = 0);
/// At most `chunks` pieces of ceil(n / chunks); an empty dimension gives `chunks` empty pieces.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);
std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim = 0);
/// New tensors. Equal shapes but for `dim`; ValueError for no tensor.
Tensor cat(std::span<const Tensor> tensors, std::int64_t dim = 0);
Tensor cat(std::initializer_list<Tensor> tensors, std::int64_t dim = 0);
Tensor stack(std::span<const Tensor> tensors, std::int64_t dim = 0);
Tensor stack(std::initializer_list<Tensor> tensors, std::int64_t dim = 0);

// ---------------------------------------------------------------- copies
/// A contiguous copy.
Tensor clone(const Tensor& x);
/// x itself if it is contiguous already.
Tensor contiguous(const Tensor& x);
/// x itself if it has the dtype already; floating to integer truncates.
Tensor to(const Tensor& x, DType dtype);
/// x itself if it is on the device already.
Tensor to(const Tensor& x, Device device);

// ---------------------------------------------------------------- indexing; index is int64, IndexError out of range
/// x[index] along dim; index 1-D.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
/// x with src[i] added at index[i] along dim, in ascending i.
Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
/// out[i][j] = x[index[i][j]][j] for dim 0; index has x's rank, and sizes <= x's but along dim.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
/// x with src[i][j] added at [index[i][j]][j] for dim 0.
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
/// Rows of weight (n, d): the shape is index's + (d). Row padding_idx gets no gradient.
Tensor embedding(const Tensor& index, const Tensor& weight, std::optional<std::int64_t> padding_idx = {});

// ---------------------------------------------------------------- softmax and losses
enum class Reduction { None, Mean, Sum };
Tensor softmax(const Tensor& x, std::int64_t dim);
Tensor log_softmax(const Tensor& x, std::int64_t dim);
/// -log softmax(x)[target]. x (n, c) or (n, c, d1, ...), or (c) with a 0-dim target; target int64 (n, d1, ...) with
/// values in [0, c) or ignore_index. Mean divides by the number of targets that count: NaN if none does.
Tensor cross_entropy(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean,
                     std::int64_t ignore_index = -100);
/// As cross_entropy on log-probabilities.
Tensor nll_loss(const Tensor& log_p, const Tensor& target, Reduction reduction = Reduction::Mean,
                std::int64_t ignore_index = -100);
/// (x - y)^2. Shapes must be equal: no broadcasting here.
Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::Mean);

// ---------------------------------------------------------------- convolution and pooling, on (n, c, h, w)
using Pair = std::array<std::int64_t, 2>;
struct Conv2dOptions {
  Pair stride{1, 1}, padding{0, 0}, dilation{1, 1};
  std::int64_t groups = 1;
};
/// Cross-correlation. weight (co, ci / groups, kh, kw), bias (co) or undefined.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv2dOptions& options = {});
/// Stride 0 means the kernel's size. Padding at most half the kernel; it never wins.
Tensor max_pool2d(const Tensor& x, Pair kernel, Pair stride = {0, 0}, Pair padding = {0, 0});
/// Padding counts as zeros.
Tensor avg_pool2d(const Tensor& x, Pair kernel, Pair stride = {0, 0}, Pair padding = {0, 0});

// ---------------------------------------------------------------- normalisation and dropout
/// Over every dimension of x (n, c, ...) but 1. weight and bias (c) or undefined. Training uses the batch's statistics
/// and moves the running ones, if defined, by `momentum` (running_var: unbiased); ValueError for one value per channel.
/// Otherwise the running ones are used.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5);
/// batch_norm() in training by the statistics of all replicas' inputs together, which every replica's running ones
/// follow. A replica's chunk may have one value per channel; an empty one takes no part.
Tensor sync_batch_norm(ReplicaExchange& exchange, const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const Tensor& running_mean, const Tensor& running_var, double momentum = 0.1, double eps = 1e-5);
/// Over the last dimensions, of shape `normalized_shape`, which weight and bias have too, or are undefined.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);
/// In training zeroes elements with probability p and scales the others by 1 / (1 - p).
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

}  // namespace tandem
