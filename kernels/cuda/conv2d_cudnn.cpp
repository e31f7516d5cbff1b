// Convolutions by cuDNN. Of the algorithms that it proposes for a shape, the fastest one that gives the same bits every
// time and needs a bounded workspace is taken, and remembered.

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <climits>
#include <map>
#include <mutex>
#include <string>

#include "../error.h"
#include "conv2d_edges.h"
#include "cuda_backend.h"
#include "libraries.h"
#include "queue.h"

namespace tandem::kernels::cuda {
namespace {

constexpr int kProposals = 8;
constexpr std::size_t kMaxWorkspace = std::size_t{512} << 20;
constexpr std::size_t kMaxPlans = 1024;

void check_cudnn(cudnnStatus_t status, const char* function) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw_library_error(function, cudnnGetErrorString(status), static_cast<int>(status));
}

/// cuDNN takes sizes as int.
int narrow(std::int64_t size) {
  if (size > INT_MAX) throw Error("conv2d: size " + std::to_string(size) + " is more than cuDNN takes");
  return static_cast<int>(size);
}

/// Owns a descriptor; `create` and `destroy` are cuDNN's functions for its kind.
template <class D, cudnnStatus_t (*create)(D*), cudnnStatus_t (*destroy)(D)>
class Descriptor {
 public:
  Descriptor() { check_cudnn(create(&descriptor_), "cudnnCreate...Descriptor"); }
  ~Descriptor() { destroy(descriptor_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  D get() const { return descriptor_; }

 private:
  D descriptor_ = nullptr;
};
using TensorDescriptor = Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor = Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

/// What cuDNN wants to know of a convolution.
class Problem {
 public:
  Problem(const View& x, const View& w, const View& y, const Conv2dArgs& args, bool tf32) {
    const cudnnDataType_t type = x.dtype == DType::Float32 ? CUDNN_DATA_FLOAT : CUDNN_DATA_DOUBLE;
    const auto set_tensor = [&](const TensorDescriptor& d, const View& v) {
      check_cudnn(cudnnSetTensor4dDescriptor(d.get(), CUDNN_TENSOR_NCHW, type, narrow(v.shape[0]), narrow(v.shape[1]),
                                             narrow(v.shape[2]), narrow(v.shape[3])),
                  "cudnnSetTensor4dDescriptor");
    };
    set_tensor(x_, x);
    set_tensor(y_, y);
    check_cudnn(cudnnSetFilter4dDescriptor(w_.get(), type, CUDNN_TENSOR_NCHW, narrow(w.shape[0]), narrow(w.shape[1]),
                                           narrow(w.shape[2]), narrow(w.shape[3])),
                "cudnnSetFilter4dDescriptor");
    check_cudnn(
        cudnnSetConvolution2dDescriptor(conv_.get(), narrow(args.padding[0]), narrow(args.padding[1]),
                                        narrow(args.stride[0]), narrow(args.stride[1]), narrow(args.dilation[0]),
                                        narrow(args.dilation[1]), CUDNN_CROSS_CORRELATION, type),
        "cudnnSetConvolution2dDescriptor");
    check_cudnn(cudnnSetConvolutionGroupCount(conv_.get(), narrow(args.groups)), "cudnnSetConvolutionGroupCount");
    check_cudnn(cudnnSetConvolutionMathType(conv_.get(), tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH),
                "cudnnSetConvolutionMathType");
  }
  cudnnTensorDescriptor_t x() const { return x_.get(); }
  cudnnFilterDescriptor_t w() const { return w_.get(); }
  cudnnTensorDescriptor_t y() const { return y_.get(); }
  cudnnConvolutionDescriptor_t conv() const { return conv_.get(); }

 private:
  TensorDescriptor x_, y_;
  FilterDescriptor w_;
  ConvolutionDescriptor conv_;
};

template <class Algorithm>
struct Choice {
  Algorithm algorithm{};
  std::size_t bytes = 0;
};

/// The first proposal, best first, that is deterministic and needs at most kMaxWorkspace; if all need more, the one
/// that needs least. `propose` fills in proposals, `size_of_workspace` tells what an algorithm needs.
template <class Proposal, class Propose, class Size>
auto choose(const char* function, Propose propose, Size size_of_workspace) {
  Proposal proposals[kProposals];
  int count = 0;
  check_cudnn(propose(&count, proposals), function);
  Choice<decltype(Proposal::algo)> best;
  bool found = false;
  for (int i = 0; i < count; ++i) {
    std::size_t bytes = 0;
    if (proposals[i].status != CUDNN_STATUS_SUCCESS || proposals[i].determinism != CUDNN_DETERMINISTIC ||
        size_of_workspace(proposals[i].algo, &bytes) != CUDNN_STATUS_SUCCESS) {
      continue;
    }
    if (!found || bytes < best.bytes) best = {proposals[i].algo, bytes};
    found = true;
    if (bytes <= kMaxWorkspace) return Choice<decltype(Proposal::algo)>{proposals[i].algo, bytes};
  }
  if (!found) throw_library_error(function, "no deterministic algorithm", static_cast<int>(CUDNN_STATUS_NOT_SUPPORTED));
  return best;
}

struct Plan {
  Choice<cudnnConvolutionFwdAlgo_t> forward;
  Choice<cudnnConvolutionBwdDataAlgo_t> input;
  Choice<cudnnConvolutionBwdFilterAlgo_t> weight;
  std::size_t bytes() const { return std::max({forward.bytes, input.bytes, weight.bytes}); }
};

Plan make_plan(cudnnHandle_t handle, const Problem& p) {
  Plan plan;
  plan.forward = choose<cudnnConvolutionFwdAlgoPerf_t>(
      "cudnnGetConvolutionForwardAlgorithm_v7",
      [&](int* count, cudnnConvolutionFwdAlgoPerf_t* out) {
        return cudnnGetConvolutionForwardAlgorithm_v7(handle, p.x(), p.w(), p.conv(), p.y(), kProposals, count, out);
      },
      [&](cudnnConvolutionFwdAlgo_t algo, std::size_t* bytes) {
        return cudnnGetConvolutionForwardWorkspaceSize(handle, p.x(), p.w(), p.conv(), p.y(), algo, bytes);
      });
  plan.input = choose<cudnnConvolutionBwdDataAlgoPerf_t>(
      "cudnnGetConvolutionBackwardDataAlgorithm_v7",
      [&](int* count, cudnnConvolutionBwdDataAlgoPerf_t* out) {
        return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, p.w(), p.y(), p.conv(), p.x(), kProposals, count,
                                                           out);
      },
      [&](cudnnConvolutionBwdDataAlgo_t algo, std::size_t* bytes) {
        return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, p.w(), p.y(), p.conv(), p.x(), algo, bytes);
      });
  plan.weight = choose<cudnnConvolutionBwdFilterAlgoPerf_t>(
      "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
      [&](int* count, cudnnConvolutionBwdFilterAlgoPerf_t* out) {
        return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, p.x(), p.y(), p.conv(), p.w(), kProposals, count,
                                                             out);
      },
      [&](cudnnConvolutionBwdFilterAlgo_t algo, std::size_t* bytes) {
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, p.x(), p.y(), p.conv(), p.w(), algo, bytes);
      });
  return plan;
}

using Key = std::array<std::int64_t, 18>;

Key key_of(int device, const View& x, const View& w, const Conv2dArgs& args, bool tf32) {
  Key key{device, static_cast<std::int64_t>(x.dtype), tf32 ? 1 : 0, args.groups};
  std::int64_t* next = key.data() + 4;
  for (const View* v : {&x, &w}) next = std::copy_n(v->shape, 4, next);
  for (const std::int64_t* pair : {args.stride, args.padding, args.dilation}) next = std::copy_n(pair, 2, next);
  return key;
}

/// The plan for a convolution of these shapes on the stream's device.
Plan plan_for(Stream& stream, cudnnHandle_t handle, const View& x, const View& w, const View& y, const Conv2dArgs& args,
              bool tf32) {
  static std::mutex mutex;
  static std::map<Key, Plan> plans;
  const Key key = key_of(stream.queue->physical(), x, w, args, tf32);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = plans.find(key); found != plans.end()) return found->second;
  }
  const Plan plan = make_plan(handle, Problem(x, w, y, args, tf32));
  const std::lock_guard lock(mutex);
  if (plans.size() >= kMaxPlans) plans.clear();
  plans.emplace(key, plan);
  return plan;
}

/// Calls f(handle, problem, plan, one, zero), the last two as cuDNN reads factors for this dtype.
template <class F>
void convolve(Stream& stream, const char* op, const View& x, const View& w, const View& y, const Conv2dArgs& args,
              F&& f) {
  Scope scope(stream, op);
  cudnnHandle_t handle = scope.cudnn();
  const bool tf32 = x.dtype == DType::Float32 && allow_tf32;
  const Plan plan = plan_for(stream, handle, x, w, y, args, tf32);
  const Problem problem(x, w, y, args, tf32);
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T one = 1, zero = 0;
    f(handle, problem, plan, &one, &zero);
  });
}

}  // namespace

cudnnContext* make_cudnn(cudaStream_t stream) {
  cudnnHandle_t handle = nullptr;
  check_cudnn(cudnnCreate(&handle), "cudnnCreate");
  try {
    check_cudnn(cudnnSetStream(handle, stream), "cudnnSetStream");
  } catch (...) {
    destroy_cudnn(handle);
    throw;
  }
  return handle;
}

void destroy_cudnn(cudnnContext* handle) noexcept {
  if (handle != nullptr) cudnnDestroy(handle);
}

std::int64_t CudaBackend::conv2d_workspace(Stream& stream, const View& x, const View& w, const View& y,
                                           const Conv2dArgs& args) const {
  if (x.numel() == 0 || w.numel() == 0 || y.numel() == 0) return 0;
  Scope scope(stream, "conv2d_workspace");
  std::size_t bytes = 0;
  // Enough for either setting of allow_tf32, which may change before the convolution runs.
  for (const bool tf32 : {false, true}) {
    if (tf32 && x.dtype != DType::Float32) continue;
    bytes = std::max(bytes, plan_for(stream, scope.cudnn(), x, w, y, args, tf32).bytes());
  }
  return static_cast<std::int64_t>(bytes);
}

void CudaBackend::conv2d(Stream& stream, const View& y, const View& x, const View& w, const View& bias,
                         const Conv2dArgs& args, void* workspace) const {
  if (conv2d_is_empty(*this, stream, y, x, w, &bias)) return;
  convolve(stream, "conv2d", x, w, y, args, [&](auto handle, const Problem& p, const Plan& plan, auto one, auto zero) {
    check_cudnn(cudnnConvolutionForward(handle, one, p.x(), x.data, p.w(), w.data, p.conv(), plan.forward.algorithm,
                                        workspace, plan.forward.bytes, zero, p.y(), y.data),
                "cudnnConvolutionForward");
  });
  conv2d_add_bias(*this, stream, y, bias);
}

void CudaBackend::conv2d_input(Stream& stream, const View& gx, const View& gy, const View& w, const Conv2dArgs& args,
                               void* workspace) const {
  if (conv2d_is_empty(*this, stream, gx, gy, w)) return;
  convolve(stream, "conv2d_input", gx, w, gy, args,
           [&](auto handle, const Problem& p, const Plan& plan, auto one, auto zero) {
             check_cudnn(
                 cudnnConvolutionBackwardData(handle, one, p.w(), w.data, p.y(), gy.data, p.conv(),
                                              plan.input.algorithm, workspace, plan.input.bytes, zero, p.x(), gx.data),
                 "cudnnConvolutionBackwardData");
           });
}

void CudaBackend::conv2d_weight(Stream& stream, const View& gw, const View& gy, const View& x, const Conv2dArgs& args,
                                void* workspace) const {
  if (conv2d_is_empty(*this, stream, gw, gy, x)) return;
  convolve(stream, "conv2d_weight", x, gw, gy, args,
           [&](auto handle, const Problem& p, const Plan& plan, auto one, auto zero) {
             check_cudnn(cudnnConvolutionBackwardFilter(handle, one, p.x(), x.data, p.y(), gy.data, p.conv(),
                                                        plan.weight.algorithm, workspace, plan.weight.bytes, zero,
                                                        p.w(), gw.data),
                         "cudnnConvolutionBackwardFilter");
           });
}

}  // namespace tandem::kernels::cuda
