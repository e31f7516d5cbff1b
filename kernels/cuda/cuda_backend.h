#pragma once
// The backend of CUDA devices, simulated ones included; each family of functions is defined in the file named after it.

#include "../backend.h"

namespace tandem::kernels::cuda {

class CudaBackend final : public Backend {
 public:
  void fill(Stream&, const View& out, const Scalar& value) const override;
  void copy(Stream&, const View& out, const View& in) const override;
  void arange(Stream&, const View& out, const Scalar& start, const Scalar& step) const override;
  void unary(Stream&, UnaryOp, const View& out, const View& in) const override;
  void unary_backward(Stream&, UnaryOp, const View& out, const View& g, const View& saved) const override;
  void binary(Stream&, BinaryOp, const View& out, const Operand& a, const Operand& b) const override;
  void compare(Stream&, CompareOp, const View& out, const Operand& a, const Operand& b) const override;
  void clamp(Stream&, const View& out, const View& in, const Scalar& lo, const Scalar& hi) const override;
  void where(Stream&, const View& out, const View& cond, const Operand& a, const Operand& b) const override;
  void reduce(Stream&, ReduceOp, const View& out, const View& in) const override;
  void reduce_index(Stream&, ReduceOp, const View& values, const View& indices, const View& in, int dim) const override;
  void gemm(Stream&, const View& c, const View& a, const View& b, double beta) const override;
  void softmax(Stream&, const View& out, const View& in, int dim, bool log) const override;
  void softmax_backward(Stream&, const View& gx, const View& g, const View& y, int dim, bool log) const override;
  void cross_entropy(Stream&, const View& loss, const View& lse, const View& x, const View& target,
                     std::int64_t ignore) const override;
  void cross_entropy_backward(Stream&, const View& gx, const View& g, const View& x, const View& lse,
                              const View& target, std::int64_t ignore) const override;
  std::int64_t conv2d_workspace(Stream&, const View& x, const View& w, const View& y, const Conv2dArgs&) const override;
  void conv2d(Stream&, const View& y, const View& x, const View& w, const View& bias, const Conv2dArgs&,
              void* workspace) const override;
  void conv2d_input(Stream&, const View& gx, const View& gy, const View& w, const Conv2dArgs&,
                    void* workspace) const override;
  void conv2d_weight(Stream&, const View& gw, const View& gy, const View& x, const Conv2dArgs&,
                     void* workspace) const override;
  void max_pool2d(Stream&, const View& y, const View& index, const View& x, const Pool2dArgs&) const override;
  void max_pool2d_backward(Stream&, const View& gx, const View& gy, const View& index) const override;
  void max_pool2d_take(Stream&, const View& y, const View& x, const View& index) const override;
  void avg_pool2d(Stream&, const View& y, const View& x, const Pool2dArgs&) const override;
  void avg_pool2d_backward(Stream&, const View& gx, const View& gy, const Pool2dArgs&) const override;
  void channel_stats(Stream&, const View& mean, const View& var, const View& x) const override;
  void batch_norm(Stream&, const View& out, const View& x, const View& mean, const View& invstd, const View& w,
                  const View& b) const override;
  void batch_norm_backward(Stream&, const View& gx, const View& gw, const View& gb, const View& g, const View& x,
                           const View& mean, const View& invstd, const View& w, bool training) const override;
  void layer_norm(Stream&, const View& out, const View& mean, const View& invstd, const View& x, const View& w,
                  const View& b, double eps) const override;
  void layer_norm_backward(Stream&, const View& gx, const View& gw, const View& gb, const View& g, const View& x,
                           const View& mean, const View& invstd, const View& w) const override;
  void index_select(Stream&, const View& out, const View& in, int dim, const View& index) const override;
  void index_add(Stream&, const View& out, int dim, const View& index, const View& src) const override;
  void gather(Stream&, const View& out, const View& in, int dim, const View& index) const override;
  void scatter_add(Stream&, const View& out, int dim, const View& index, const View& src) const override;
  void uniform(Stream&, const View& out, PhiloxState, double lo, double hi) const override;
  void normal(Stream&, const View& out, PhiloxState, double mean, double std) const override;
  void randint(Stream&, const View& out, PhiloxState, std::int64_t lo, std::int64_t hi) const override;
  void dropout(Stream&, const View& out, const View& mask, const View& in, PhiloxState, double p) const override;
  void sgd_step(Stream&, const View& p, const View& g, const View& velocity, const SgdArgs&) const override;
  void adam_step(Stream&, const View& p, const View& g, const View& m, const View& v, const AdamArgs&) const override;
};

}  // namespace tandem::kernels::cuda
