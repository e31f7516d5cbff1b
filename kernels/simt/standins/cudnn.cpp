// cuDNN on simulated GPUs: the convolutions in use, by the CPU backend. Descriptors and pointers are checked as in
// cublas.cpp.
//
// The first proposal for a gradient is an algorithm whose results depend on timing, as on real GPUs; it is refused when
// called.

#include <cudnn.h>

#include <array>
#include <string>

#include "../../backend.h"
#include "standin.h"

using tandem::DType;
using tandem::kernels::Conv2dArgs;
using tandem::kernels::View;
namespace simt = tandem::simt;

struct cudnnContext {
  int device = 0;
  cudaStream_t stream = nullptr;
};

namespace {

/// A tensor or a filter, contiguous, in NCHW order.
struct Array {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<std::int64_t, 4> sizes{};

  bool is_set() const { return sizes[0] > 0; }
  DType dtype() const { return type == CUDNN_DATA_FLOAT ? DType::Float32 : DType::Float64; }
  std::int64_t numel() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
  std::size_t element() const { return type == CUDNN_DATA_FLOAT ? sizeof(float) : sizeof(double); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * element(); }
};

}  // namespace

struct cudnnTensorStruct : Array {};
struct cudnnFilterStruct : Array {};
struct cudnnConvolutionStruct {
  bool is_set = false;
  Conv2dArgs args;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace {

simt::Handles<cudnnContext> handles;
simt::Handles<cudnnTensorStruct> tensors;
simt::Handles<cudnnFilterStruct> filters;
simt::Handles<cudnnConvolutionStruct> convolutions;

cudnnStatus_t refuse(cudnnStatus_t status, const char* function, const std::string& why) {
  simt::report_refusal(function, why);
  return status;
}

cudnnStatus_t set_array(Array& array, const char* function, cudnnTensorFormat_t format, cudnnDataType_t type,
                        std::array<std::int64_t, 4> sizes) {
  if (format != CUDNN_TENSOR_NCHW) return refuse(CUDNN_STATUS_NOT_SUPPORTED, function, "only NCHW");
  if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_DOUBLE) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, function, "data type " + std::to_string(type));
  }
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size < 1) return refuse(CUDNN_STATUS_BAD_PARAM, function, "size " + std::to_string(size));
    if (count > (std::int64_t{1} << 31) / size)
      return refuse(CUDNN_STATUS_NOT_SUPPORTED, function, "over 2^31 elements");
    count *= size;
  }
  array.type = type;
  array.sizes = sizes;
  return CUDNN_STATUS_SUCCESS;
}

/// Contiguous memory as the CPU backend sees it.
struct Contiguous {
  Contiguous(const Array& a, const void* data) : array(a), data_(const_cast<void*>(data)) {
    std::int64_t step = 1;
    for (std::size_t i = 4; i-- > 0; step *= array.sizes[i]) strides_[i] = step;
  }
  View view() const { return {data_, array.sizes.data(), strides_.data(), 4, array.dtype()}; }
  Array array;
  void* data_;
  std::array<std::int64_t, 4> strides_{};
};

/// A convolution as one of the functions was given it.
struct Problem {
  const char* function;
  cudnnHandle_t handle;
  const Array& x;
  const Array& w;
  const Array& y;
  const cudnnConvolutionStruct& convolution;

  /// What does not fit together, reported.
  cudnnStatus_t check() const {
    const Conv2dArgs& a = convolution.args;
    if (!x.is_set() || !w.is_set() || !y.is_set() || !convolution.is_set) {
      return refuse(CUDNN_STATUS_BAD_PARAM, function, "a descriptor is not set");
    }
    if (x.type != w.type || x.type != y.type || x.type != convolution.compute) {
      return refuse(CUDNN_STATUS_BAD_PARAM, function, "the types differ");
    }
    bool fits = x.sizes[1] == w.sizes[1] * a.groups && w.sizes[0] % a.groups == 0 && y.sizes[0] == x.sizes[0] &&
                y.sizes[1] == w.sizes[0];
    for (std::size_t d : {0, 1}) {
      const std::int64_t reach = x.sizes[2 + d] + 2 * a.padding[d] - a.dilation[d] * (w.sizes[2 + d] - 1) - 1;
      fits = fits && reach >= 0 && y.sizes[2 + d] == reach / a.stride[d] + 1;
    }
    return fits ? CUDNN_STATUS_SUCCESS : refuse(CUDNN_STATUS_BAD_PARAM, function, "the shapes do not fit");
  }
  std::size_t workspace() const {
    tandem::kernels::Stream stream;
    return static_cast<std::size_t>(tandem::kernels::cpu_backend().conv2d_workspace(
        stream, Contiguous(x, nullptr).view(), Contiguous(w, nullptr).view(), Contiguous(y, nullptr).view(),
        convolution.args));
  }
};

/// `f(problem)` with the descriptors looked up, if they are live and fit together.
template <class F>
cudnnStatus_t with_problem(const char* function, cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                           cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t y,
                           cudnnConvolutionDescriptor_t convolution, F&& f) {
  if (!handles.has(handle)) return refuse(CUDNN_STATUS_NOT_INITIALIZED, function, "no such handle");
  if (!tensors.has(x) || !filters.has(w) || !tensors.has(y) || !convolutions.has(convolution)) {
    return refuse(CUDNN_STATUS_BAD_PARAM, function, "no such descriptor");
  }
  const Problem problem{function, handle, *x, *w, *y, *convolution};
  const cudnnStatus_t status = problem.check();
  return status == CUDNN_STATUS_SUCCESS ? f(problem) : status;
}

/// Proposes these algorithms, in order. The last one is the deterministic one that is implemented.
template <class Result, class Algorithm>
cudnnStatus_t propose(const Problem& p, std::initializer_list<Algorithm> algorithms, int requested, int* returned,
                      Result* results) {
  if (requested < 1 || returned == nullptr || results == nullptr) {
    return refuse(CUDNN_STATUS_BAD_PARAM, p.function, "no room for results");
  }
  *returned = 0;
  for (const Algorithm algorithm : algorithms) {
    if (*returned == requested) break;
    Result& result = results[(*returned)++];
    result = {};
    result.algo = algorithm;
    result.status = CUDNN_STATUS_SUCCESS;
    result.memory = p.workspace();
    result.determinism = algorithm == *(algorithms.end() - 1) ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
    result.mathType = p.convolution.math;
  }
  return CUDNN_STATUS_SUCCESS;
}

template <class Algorithm>
cudnnStatus_t size_of_workspace(const Problem& p, Algorithm algorithm, Algorithm implemented, size_t* bytes) {
  if (bytes == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM, p.function, "no place for the size");
  if (algorithm != implemented) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, p.function, "algorithm " + std::to_string(algorithm));
  }
  *bytes = p.workspace();
  return CUDNN_STATUS_SUCCESS;
}

struct Argument {
  const char* name;
  const Array& array;
  const void* data;
};

/// Checks the rest of a convolution's arguments and queues `f(out, first, second, args, workspace)`.
template <class Algorithm, class F>
cudnnStatus_t convolve(const Problem& p, Algorithm algorithm, Algorithm implemented, const void* alpha,
                       const void* beta, const Argument& out, const Argument& first, const Argument& second,
                       void* workspace, std::size_t bytes, F f) {
  const auto bad = [&](const std::string& why) { return refuse(CUDNN_STATUS_BAD_PARAM, p.function, why); };
  if (algorithm != implemented) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, p.function, "algorithm " + std::to_string(algorithm));
  }
  if (alpha == nullptr || beta == nullptr) return bad("alpha or beta is null");
  if (simt::is_device_memory(alpha) || simt::is_device_memory(beta)) return bad("alpha or beta is in device memory");
  const auto value = [&](const void* factor) {
    return p.x.type == CUDNN_DATA_FLOAT ? static_cast<double>(*static_cast<const float*>(factor))
                                        : *static_cast<const double*>(factor);
  };
  if (value(alpha) != 1 || value(beta) != 0) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, p.function, "alpha other than 1 or beta other than 0");
  }
  const std::size_t needed = p.workspace();
  if (bytes < needed) {
    return bad("a workspace of " + std::to_string(bytes) + " bytes, " + std::to_string(needed) + " needed");
  }
  const int device = p.handle->device;
  for (const Argument* argument : {&out, &first, &second}) {
    if (const std::string fault = simt::pointer_fault(argument->name, argument->data, argument->array.bytes(),
                                                      argument->array.element(), device);
        !fault.empty()) {
      return bad(fault);
    }
  }
  for (const std::string& fault :
       {simt::pointer_fault("workspace", workspace, bytes, 16, device), simt::current_device_fault(device),
        simt::stream_fault(p.handle->stream, device),
        simt::overlap_fault(out.name, {out.data, out.array.bytes()}, first.name, {first.data, first.array.bytes()}),
        simt::overlap_fault(out.name, {out.data, out.array.bytes()}, second.name, {second.data, second.array.bytes()}),
        simt::overlap_fault("workspace", {workspace, bytes}, out.name, {out.data, out.array.bytes()}),
        simt::overlap_fault("workspace", {workspace, bytes}, first.name, {first.data, first.array.bytes()}),
        simt::overlap_fault("workspace", {workspace, bytes}, second.name, {second.data, second.array.bytes()})}) {
    if (!fault.empty()) return bad(fault);
  }
  const Contiguous result(out.array, out.data), left(first.array, first.data), right(second.array, second.data);
  const cudaError_t queued = simt::queue(p.handle->stream, p.function,
                                         {{first.data, first.array.bytes()}, {second.data, second.array.bytes()}},
                                         {{out.data, out.array.bytes()}, {workspace, bytes}},
                                         [result, left, right, args = p.convolution.args, workspace, f] {
                                           tandem::kernels::Stream stream;
                                           f(stream, result.view(), left.view(), right.view(), args, workspace);
                                         });
  return queued == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

template <class T>
cudnnStatus_t create(simt::Handles<T>& all, T** descriptor, const char* function) {
  if (descriptor == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM, function, "the address is null");
  *descriptor = all.make();
  return CUDNN_STATUS_SUCCESS;
}

template <class T>
cudnnStatus_t destroy(simt::Handles<T>& all, T* descriptor, const char* function) {
  return all.destroy(descriptor) ? CUDNN_STATUS_SUCCESS
                                 : refuse(CUDNN_STATUS_BAD_PARAM, function, "no such handle or descriptor");
}

}  // namespace

extern "C" {

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return CUDNN_STATUS_NOT_INITIALIZED;
  const cudnnStatus_t status = create(handles, handle, "cudnnCreate");
  if (status == CUDNN_STATUS_SUCCESS) (*handle)->device = device;
  return status;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy(handles, handle, "cudnnDestroy"); }

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!handles.has(handle)) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "cudnnSetStream", "no such handle");
  if (const std::string fault = simt::stream_fault(stream, handle->device); !fault.empty()) {
    return refuse(CUDNN_STATUS_BAD_PARAM, "cudnnSetStream", fault);
  }
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  if (!handles.has(handle)) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "cudnnGetStream", "no such handle");
  if (stream == nullptr) return CUDNN_STATUS_BAD_PARAM;
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* descriptor) {
  return create(tensors, descriptor, "cudnnCreateTensorDescriptor");
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
  return destroy(tensors, descriptor, "cudnnDestroyTensorDescriptor");
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  const char* function = "cudnnSetTensor4dDescriptor";
  if (!tensors.has(descriptor)) return refuse(CUDNN_STATUS_BAD_PARAM, function, "no such descriptor");
  return set_array(*descriptor, function, format, type, {n, c, h, w});
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* descriptor) {
  return create(filters, descriptor, "cudnnCreateFilterDescriptor");
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t descriptor) {
  return destroy(filters, descriptor, "cudnnDestroyFilterDescriptor");
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  const char* function = "cudnnSetFilter4dDescriptor";
  if (!filters.has(descriptor)) return refuse(CUDNN_STATUS_BAD_PARAM, function, "no such descriptor");
  return set_array(*descriptor, function, format, type, {k, c, h, w});
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* descriptor) {
  return create(convolutions, descriptor, "cudnnCreateConvolutionDescriptor");
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t descriptor) {
  return destroy(convolutions, descriptor, "cudnnDestroyConvolutionDescriptor");
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t descriptor, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
  const char* function = "cudnnSetConvolution2dDescriptor";
  if (!convolutions.has(descriptor)) return refuse(CUDNN_STATUS_BAD_PARAM, function, "no such descriptor");
  if (mode != CUDNN_CROSS_CORRELATION) return refuse(CUDNN_STATUS_NOT_SUPPORTED, function, "only cross-correlation");
  if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1) {
    return refuse(CUDNN_STATUS_BAD_PARAM, function, "a negative padding, or a stride or dilation below 1");
  }
  const std::int64_t groups = descriptor->args.groups;
  descriptor->args = {{stride_h, stride_w}, {pad_h, pad_w}, {dilation_h, dilation_w}, groups};
  descriptor->compute = compute;
  descriptor->is_set = true;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t descriptor, int groups) {
  const char* function = "cudnnSetConvolutionGroupCount";
  if (!convolutions.has(descriptor)) return refuse(CUDNN_STATUS_BAD_PARAM, function, "no such descriptor");
  if (groups < 1) return refuse(CUDNN_STATUS_BAD_PARAM, function, std::to_string(groups) + " groups");
  descriptor->args.groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t descriptor, cudnnMathType_t math) {
  const char* function = "cudnnSetConvolutionMathType";
  if (!convolutions.has(descriptor)) return refuse(CUDNN_STATUS_BAD_PARAM, function, "no such descriptor");
  if (math != CUDNN_DEFAULT_MATH && math != CUDNN_FMA_MATH) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, function, "math type " + std::to_string(math));
  }
  descriptor->math = math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t convolution,
                                                     const cudnnTensorDescriptor_t y, const int requested,
                                                     int* returned, cudnnConvolutionFwdAlgoPerf_t* results) {
  return with_problem("cudnnGetConvolutionForwardAlgorithm_v7", handle, x, w, y, convolution, [&](const Problem& p) {
    return propose(p, {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM}, requested, returned, results);
  });
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t convolution,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
  return with_problem("cudnnGetConvolutionForwardWorkspaceSize", handle, x, w, y, convolution, [&](const Problem& p) {
    return size_of_workspace(p, algorithm, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, bytes);
  });
}
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_shape,
                                      const void* x, const cudnnFilterDescriptor_t w_shape, const void* w,
                                      const cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes,
                                      const void* beta, const cudnnTensorDescriptor_t y_shape, void* y) {
  return with_problem("cudnnConvolutionForward", handle, x_shape, w_shape, y_shape, convolution, [&](const Problem& p) {
    return convolve(
        p, algorithm, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, alpha, beta, {"y", p.y, y}, {"x", p.x, x},
        {"w", p.w, w}, workspace, bytes,
        [](auto& stream, const View& out, const View& in, const View& weight, const Conv2dArgs& args, void* space) {
          View no_bias = weight;
          no_bias.data = nullptr;
          tandem::kernels::cpu_backend().conv2d(stream, out, in, weight, no_bias, args, space);
        });
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t dy,
                                                          const cudnnConvolutionDescriptor_t convolution,
                                                          const cudnnTensorDescriptor_t dx, const int requested,
                                                          int* returned, cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return with_problem("cudnnGetConvolutionBackwardDataAlgorithm_v7", handle, dx, w, dy, convolution,
                      [&](const Problem& p) {
                        return propose(p, {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1},
                                       requested, returned, results);
                      });
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                           const cudnnTensorDescriptor_t dy,
                                                           const cudnnConvolutionDescriptor_t convolution,
                                                           const cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
  return with_problem(
      "cudnnGetConvolutionBackwardDataWorkspaceSize", handle, dx, w, dy, convolution,
      [&](const Problem& p) { return size_of_workspace(p, algorithm, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, bytes); });
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t w_shape, const void* w,
                                           const cudnnTensorDescriptor_t dy_shape, const void* dy,
                                           const cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace, size_t bytes,
                                           const void* beta, const cudnnTensorDescriptor_t dx_shape, void* dx) {
  return with_problem(
      "cudnnConvolutionBackwardData", handle, dx_shape, w_shape, dy_shape, convolution, [&](const Problem& p) {
        return convolve(p, algorithm, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, alpha, beta, {"dx", p.x, dx}, {"dy", p.y, dy},
                        {"w", p.w, w}, workspace, bytes,
                        [](auto& stream, const View& out, const View& gradient, const View& weight,
                           const Conv2dArgs& args, void* space) {
                          tandem::kernels::cpu_backend().conv2d_input(stream, out, gradient, weight, args, space);
                        });
      });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t dy,
                                                            const cudnnConvolutionDescriptor_t convolution,
                                                            const cudnnFilterDescriptor_t dw, const int requested,
                                                            int* returned,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return with_problem("cudnnGetConvolutionBackwardFilterAlgorithm_v7", handle, x, dw, dy, convolution,
                      [&](const Problem& p) {
                        return propose(p, {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1},
                                       requested, returned, results);
                      });
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                             const cudnnTensorDescriptor_t dy,
                                                             const cudnnConvolutionDescriptor_t convolution,
                                                             const cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
  return with_problem(
      "cudnnGetConvolutionBackwardFilterWorkspaceSize", handle, x, dw, dy, convolution,
      [&](const Problem& p) { return size_of_workspace(p, algorithm, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, bytes); });
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t x_shape, const void* x,
                                             const cudnnTensorDescriptor_t dy_shape, const void* dy,
                                             const cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, size_t bytes,
                                             const void* beta, const cudnnFilterDescriptor_t dw_shape, void* dw) {
  return with_problem(
      "cudnnConvolutionBackwardFilter", handle, x_shape, dw_shape, dy_shape, convolution, [&](const Problem& p) {
        return convolve(
            p, algorithm, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, alpha, beta, {"dw", p.w, dw}, {"dy", p.y, dy},
            {"x", p.x, x}, workspace, bytes,
            [](auto& stream, const View& out, const View& gradient, const View& in, const Conv2dArgs& args,
               void* space) { tandem::kernels::cpu_backend().conv2d_weight(stream, out, gradient, in, args, space); });
      });
}

}  // extern "C"
