// The stand-ins for cuBLAS, cuDNN and NCCL: that they refuse what the libraries would not do, or do wrongly, and that
// collectives are right, notice ranks that disagree, and can be made to hang.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "../../kernels/cuda/nccl.h"
#include "../../kernels/error.h"
#include "../../kernels/simt/control.h"
#include "../catch.h"

namespace simt = tandem::simt;

namespace {

/// The tests provoke refusals; nobody needs to see them.
const bool quiet = (simt::print_reports(false), true);

void ok(cudaError_t code) { REQUIRE(code == cudaSuccess); }

/// Elements in the memory of a device.
template <class T>
class Memory {
 public:
  Memory(int device, std::vector<T> values) : size_(values.size()) {
    ok(cudaSetDevice(device));
    void* data = nullptr;
    ok(cudaMalloc(&data, size_ * sizeof(T)));
    data_ = static_cast<T*>(data);
    ok(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  Memory(Memory&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
  ~Memory() {
    if (data_ != nullptr) cudaFree(data_);
  }
  T* get() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> out(size_);
    ok(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  T* data_;
  std::size_t size_;
};

class Stream {
 public:
  explicit Stream(int device) {
    ok(cudaSetDevice(device));
    ok(cudaStreamCreate(&stream_));
  }
  Stream(Stream&& other) noexcept : stream_(other.stream_) { other.stream_ = nullptr; }
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }
  void wait() const { ok(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A product of cuBLAS whose arguments tests can spoil one by one: column-major 2 x 3 by 3 x 2.
struct Product {
  Product() {
    REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasSetStream(handle, stream.get()) == CUBLAS_STATUS_SUCCESS);
  }
  ~Product() { cublasDestroy(handle); }
  cublasStatus_t run() {
    return cublasGemmStridedBatchedEx_64(handle, op_a, CUBLAS_OP_N, m, n, k, &alpha, a, a_type, lda, 0, b, CUDA_R_32F,
                                         ldb, 0, &beta, c, CUDA_R_32F, ldc, c_stride, batch, compute, algorithm);
  }
  Stream stream{0};
  Memory<float> a_memory{0, {1, 2, 3, 4, 5, 6}}, b_memory{0, {1, 0, 1, 0, 1, 0}}, c_memory{0, {9, 9, 9, 9}};
  cublasHandle_t handle = nullptr;
  cublasOperation_t op_a = CUBLAS_OP_N;
  std::int64_t m = 2, n = 2, k = 3, lda = 2, ldb = 3, ldc = 2, batch = 1;
  long long c_stride = 0;
  float alpha = 1, beta = 0;
  const void* a = a_memory.get();
  const void* b = b_memory.get();
  void* c = c_memory.get();
  cudaDataType a_type = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasGemmAlgo_t algorithm = CUBLAS_GEMM_DEFAULT;
};

// A convolution of cuDNN, likewise: a 3 x 3 image and a 2 x 2 filter.
struct Convolution {
  Convolution() {
    REQUIRE(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetStream(handle, stream.get()) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnCreateTensorDescriptor(&x) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnCreateTensorDescriptor(&y) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnCreateFilterDescriptor(&w) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnCreateConvolutionDescriptor(&conv) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 3, 3) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 1, 1, 2, 2) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 2, 2) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetConvolution2dDescriptor(conv, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT) ==
            CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, conv, y, algorithm, &bytes) == CUDNN_STATUS_SUCCESS);
    workspace.emplace(0, std::vector<char>(bytes + 1));
    space = workspace->get();
  }
  ~Convolution() {
    cudnnDestroyConvolutionDescriptor(conv);
    cudnnDestroyFilterDescriptor(w);
    cudnnDestroyTensorDescriptor(y);
    cudnnDestroyTensorDescriptor(x);
    cudnnDestroy(handle);
  }
  cudnnStatus_t run() {
    return cudnnConvolutionForward(handle, &alpha, x, image, w, filter.get(), conv, algorithm, space, bytes, &beta, y,
                                   out);
  }
  Stream stream{0};
  Memory<float> input{0, {1, 2, 3, 4, 5, 6, 7, 8, 9}}, filter{0, {1, 0, 0, 1}}, output{0, {0, 0, 0, 0}};
  std::optional<Memory<char>> workspace;
  cudnnHandle_t handle = nullptr;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t w = nullptr;
  cudnnConvolutionDescriptor_t conv = nullptr;
  cudnnConvolutionFwdAlgo_t algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  const void* image = input.get();
  void* out = output.get();
  void* space = nullptr;
  std::size_t bytes = 0;
  float alpha = 1, beta = 0;
};

/// `count` ranks, each on its device with a stream and two buffers: rank r's first is {10 r, 10 r + 1, ...}.
struct Ranks {
  explicit Ranks(int count, std::size_t elements = 8) : comms(static_cast<std::size_t>(count)) {
    REQUIRE(ncclCommInitAll(comms.data(), count, nullptr) == ncclSuccess);
    for (int r = 0; r < count; ++r) {
      std::vector<float> values(elements);
      for (std::size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(10 * r) + static_cast<float>(i);
      in.emplace_back(r, values);
      out.emplace_back(r, std::vector<float>(elements, -1));
      streams.emplace_back(r);
    }
  }
  ~Ranks() {
    for (ncclComm_t comm : comms) {
      if (comm != nullptr) ncclCommDestroy(comm);
    }
  }
  int size() const { return static_cast<int>(comms.size()); }
  /// One call per rank within a group.
  template <class F>
  ncclResult_t together(F&& f) {
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (std::size_t r = 0; r < comms.size(); ++r) f(r);
    return ncclGroupEnd();
  }
  ncclResult_t all_reduce() {
    return together([&](std::size_t r) {
      ncclAllReduce(in[r].get(), out[r].get(), 4, ncclFloat32, ncclSum, comms[r], streams[r].get());
    });
  }
  void wait() {
    for (const Stream& stream : streams) stream.wait();
  }
  void abort() {
    for (ncclComm_t& comm : comms) ncclCommAbort(std::exchange(comm, nullptr));
  }
  std::vector<ncclComm_t> comms;
  std::vector<Memory<float>> in, out;
  std::vector<Stream> streams;
};

std::vector<float> first(const Memory<float>& memory, std::size_t count) {
  std::vector<float> values = memory.values();
  values.resize(count);
  return values;
}

}  // namespace

TEST_CASE("the cuBLAS stand-in multiplies", "[standins]") {
  Product p;
  REQUIRE(p.run() == CUBLAS_STATUS_SUCCESS);
  p.stream.wait();
  CHECK(p.c_memory.values() == std::vector<float>{6, 8, 3, 4});
  p.beta = 1;
  REQUIRE(p.run() == CUBLAS_STATUS_SUCCESS);
  p.stream.wait();
  CHECK(p.c_memory.values() == std::vector<float>{12, 16, 6, 8});
}

TEST_CASE("the cuBLAS stand-in refuses what cuBLAS cannot do", "[standins]") {
  Product p;
  const cublasStatus_t invalid = CUBLAS_STATUS_INVALID_VALUE, unsupported = CUBLAS_STATUS_NOT_SUPPORTED;
  SECTION("leading dimensions") {
    p.lda = 1;
    CHECK(p.run() == invalid);
    p.lda = 2, p.op_a = CUBLAS_OP_T;
    CHECK(p.run() == invalid);
    p.op_a = CUBLAS_OP_N, p.ldc = 1;
    CHECK(p.run() == invalid);
  }
  SECTION("memory") {
    p.a = nullptr;
    CHECK(p.run() == invalid);
    p.a = p.a_memory.get() + 1;
    CHECK(p.run() == invalid);
    p.a = reinterpret_cast<const char*>(p.a_memory.get()) + 2;
    CHECK(p.run() == invalid);
    float host[6] = {};
    p.a = host;
    CHECK(p.run() == invalid);
    Memory<float> elsewhere(1, std::vector<float>(6));
    ok(cudaSetDevice(0));
    p.a = elsewhere.get();
    CHECK(p.run() == invalid);
  }
  SECTION("outputs that overlap") {
    p.c = p.a_memory.get();
    CHECK(p.run() == invalid);
    p.c = p.c_memory.get(), p.batch = 2, p.n = 1;
    CHECK(p.run() == invalid);
    p.c_stride = 2;
    CHECK(p.run() == CUBLAS_STATUS_SUCCESS);
  }
  SECTION("types and algorithms") {
    p.a_type = CUDA_R_16F;
    CHECK(p.run() == unsupported);
    p.a_type = CUDA_R_32F, p.compute = CUBLAS_COMPUTE_64F;
    CHECK(p.run() == unsupported);
    p.compute = CUBLAS_COMPUTE_32F, p.alpha = 2;
    CHECK(p.run() == unsupported);
  }
  SECTION("handles and devices") {
    ok(cudaSetDevice(1));
    CHECK(p.run() == invalid);
    Stream other(1);
    CHECK(cublasSetStream(p.handle, other.get()) == invalid);
    ok(cudaSetDevice(0));
    CHECK(cublasSetStream(nullptr, nullptr) == CUBLAS_STATUS_NOT_INITIALIZED);
    CHECK(cublasSetPointerMode(p.handle, CUBLAS_POINTER_MODE_DEVICE) == unsupported);
  }
  p.stream.wait();
}

TEST_CASE("the cuDNN stand-in convolves", "[standins]") {
  Convolution c;
  REQUIRE(c.run() == CUDNN_STATUS_SUCCESS);
  c.stream.wait();
  CHECK(c.output.values() == std::vector<float>{6, 8, 12, 14});
}

TEST_CASE("the cuDNN stand-in refuses what cuDNN cannot do", "[standins]") {
  Convolution c;
  const cudnnStatus_t bad = CUDNN_STATUS_BAD_PARAM, unsupported = CUDNN_STATUS_NOT_SUPPORTED;
  SECTION("shapes") {
    REQUIRE(cudnnSetTensor4dDescriptor(c.y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 3, 3) == CUDNN_STATUS_SUCCESS);
    CHECK(c.run() == bad);
    CHECK(cudnnSetTensor4dDescriptor(c.y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 0, 3, 3) == bad);
    CHECK(cudnnSetTensor4dDescriptor(c.y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, 1, 2, 2) == unsupported);
    CHECK(cudnnSetConvolutionGroupCount(c.conv, 0) == bad);
    CHECK(cudnnSetConvolution2dDescriptor(c.conv, 0, 0, 0, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT) == bad);
  }
  SECTION("memory") {
    c.image = nullptr;
    CHECK(c.run() == bad);
    c.image = c.input.get() + 1;
    CHECK(c.run() == bad);
    c.image = c.input.get(), c.out = c.input.get();
    CHECK(c.run() == bad);
    c.out = c.output.get(), c.space = static_cast<char*>(c.space) + 1;
    CHECK(c.run() == bad);
  }
  SECTION("workspace") {
    REQUIRE(c.bytes > 0);
    --c.bytes;
    CHECK(c.run() == bad);
  }
  SECTION("algorithms and factors") {
    c.algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
    CHECK(c.run() == unsupported);
    c.algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, c.beta = 1;
    CHECK(c.run() == unsupported);
  }
  SECTION("devices") {
    ok(cudaSetDevice(1));
    CHECK(c.run() == bad);
    ok(cudaSetDevice(0));
  }
}

TEST_CASE("the cuDNN stand-in proposes an algorithm that depends on timing first", "[standins]") {
  Convolution c;
  cudnnConvolutionBwdDataAlgoPerf_t results[4];
  int count = 0;
  REQUIRE(cudnnGetConvolutionBackwardDataAlgorithm_v7(c.handle, c.w, c.y, c.conv, c.x, 4, &count, results) ==
          CUDNN_STATUS_SUCCESS);
  REQUIRE(count == 2);
  CHECK(results[0].determinism == CUDNN_NON_DETERMINISTIC);
  CHECK(results[1].determinism == CUDNN_DETERMINISTIC);
}

TEST_CASE("collectives compute what they should", "[standins][nccl]") {
  Ranks ranks(4);
  SECTION("all-reduce") {
    REQUIRE(ranks.all_reduce() == ncclSuccess);
    ranks.wait();
    for (const auto& out : ranks.out) CHECK(first(out, 5) == std::vector<float>{60, 64, 68, 72, -1});
  }
  SECTION("in place, with another operation") {
    REQUIRE(ranks.together([&](std::size_t r) {
      ncclAllReduce(ranks.in[r].get(), ranks.in[r].get(), 4, ncclFloat32, ncclMax, ranks.comms[r],
                    ranks.streams[r].get());
    }) == ncclSuccess);
    ranks.wait();
    for (const auto& in : ranks.in) CHECK(first(in, 4) == std::vector<float>{30, 31, 32, 33});
  }
  SECTION("broadcast") {
    REQUIRE(ranks.together([&](std::size_t r) {
      ncclBroadcast(ranks.in[r].get(), ranks.in[r].get(), 3, ncclFloat32, 2, ranks.comms[r], ranks.streams[r].get());
    }) == ncclSuccess);
    ranks.wait();
    CHECK(first(ranks.in[0], 4) == std::vector<float>{20, 21, 22, 3});
    CHECK(first(ranks.in[3], 4) == std::vector<float>{20, 21, 22, 33});
  }
  SECTION("reduce, of one type after another") {
    REQUIRE(ranks.together([&](std::size_t r) {
      ncclReduce(ranks.in[r].get(), ranks.out[r].get(), 2, ncclFloat32, ncclSum, 1, ranks.comms[r],
                 ranks.streams[r].get());
    }) == ncclSuccess);
    ranks.wait();
    CHECK(first(ranks.out[0], 2) == std::vector<float>{-1, -1});
    CHECK(first(ranks.out[1], 2) == std::vector<float>{60, 64});
    std::vector<Memory<std::int64_t>> integers;
    for (int r = 0; r < 4; ++r) integers.emplace_back(r, std::vector<std::int64_t>{std::int64_t{1} << 60, r});
    REQUIRE(ranks.together([&](std::size_t r) {
      ncclReduce(integers[r].get(), integers[r].get(), 2, ncclInt64, ncclSum, 0, ranks.comms[r],
                 ranks.streams[r].get());
    }) == ncclSuccess);
    ranks.wait();
    CHECK(integers[0].values() == std::vector<std::int64_t>{std::int64_t{1} << 62, 6});
    CHECK(integers[1].values() == std::vector<std::int64_t>{std::int64_t{1} << 60, 1});
  }
  SECTION("reduce-scatter and all-gather") {
    REQUIRE(ranks.together([&](std::size_t r) {
      ncclReduceScatter(ranks.in[r].get(), ranks.out[r].get(), 2, ncclFloat32, ncclSum, ranks.comms[r],
                        ranks.streams[r].get());
    }) == ncclSuccess);
    REQUIRE(ranks.together([&](std::size_t r) {
      ncclAllGather(ranks.out[r].get(), ranks.in[r].get(), 2, ncclFloat32, ranks.comms[r], ranks.streams[r].get());
    }) == ncclSuccess);
    ranks.wait();
    for (const auto& in : ranks.in) CHECK(in.values() == std::vector<float>{60, 64, 68, 72, 76, 80, 84, 88});
  }
}

TEST_CASE("sums are in the order of ranks", "[standins][nccl]") {
  const std::array<float, 4> terms{1e8f, 1, -1e8f, 1};
  Ranks ranks(4, 4);
  for (int r = 0; r < 4; ++r) {
    const std::vector<float> values(4, terms[static_cast<std::size_t>(r)]);
    ok(cudaMemcpy(ranks.in[static_cast<std::size_t>(r)].get(), values.data(), 16, cudaMemcpyHostToDevice));
  }
  REQUIRE(ranks.all_reduce() == ncclSuccess);
  ranks.wait();
  for (const auto& out : ranks.out) CHECK(out.values()[0] == 1);
}

TEST_CASE("ranks may live in threads", "[standins][nccl]") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::array<std::vector<float>, 3> sums;
  std::array<ncclResult_t, 3> results{};
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const auto index = static_cast<std::size_t>(r);
      ncclComm_t comm = nullptr;
      cudaSetDevice(r);
      results[index] = ncclCommInitRank(&comm, 3, id, r);
      if (results[index] != ncclSuccess) return;
      void* data = nullptr;
      cudaStream_t stream = nullptr;
      std::vector<float> values(100, static_cast<float>(r + 1));
      cudaMalloc(&data, 400);
      cudaStreamCreate(&stream);
      cudaMemcpy(data, values.data(), 400, cudaMemcpyHostToDevice);
      for (int i = 0; i < 5 && results[index] == ncclSuccess; ++i) {
        results[index] = ncclAllReduce(data, data, 100, ncclFloat32, ncclSum, comm, stream);
      }
      cudaStreamSynchronize(stream);
      cudaMemcpy(values.data(), data, 400, cudaMemcpyDeviceToHost);
      sums[index] = values;
      ncclCommDestroy(comm);
      cudaStreamDestroy(stream);
      cudaFree(data);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(results[r] == ncclSuccess);
    CHECK(sums[r] == std::vector<float>(100, 6 * 81));
  }
}

TEST_CASE("communicators that cannot be", "[standins][nccl]") {
  ncclComm_t comms[2] = {};
  const int twice[2] = {1, 1}, missing[2] = {0, 1000};
  CHECK(ncclCommInitAll(comms, 2, twice) == ncclInvalidUsage);
  CHECK(ncclCommInitAll(comms, 2, missing) != ncclSuccess);
  CHECK(ncclCommInitAll(comms, 1000, nullptr) == ncclInvalidArgument);
  CHECK(ncclCommDestroy(nullptr) == ncclInvalidArgument);
  ncclUniqueId id{};
  CHECK(ncclCommInitRank(comms, 2, id, 0) == ncclInvalidArgument);
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  simt::set_join_timeout(std::chrono::milliseconds(20));
  CHECK(ncclCommInitRank(comms, 2, id, 0) == ncclSystemError);
  simt::set_join_timeout(std::chrono::seconds(30));
}

TEST_CASE("ranks that disagree are found out", "[standins][nccl]") {
  Ranks ranks(2);
  const std::function<ncclResult_t()> calls[] = {
      [&] {
        return ncclAllReduce(ranks.in[1].get(), ranks.out[1].get(), 3, ncclFloat32, ncclSum, ranks.comms[1],
                             ranks.streams[1].get());
      },
      [&] {
        return ncclAllReduce(ranks.in[1].get(), ranks.out[1].get(), 4, ncclInt32, ncclSum, ranks.comms[1],
                             ranks.streams[1].get());
      },
      [&] {
        return ncclAllReduce(ranks.in[1].get(), ranks.out[1].get(), 4, ncclFloat32, ncclMax, ranks.comms[1],
                             ranks.streams[1].get());
      },
      [&] {
        return ncclBroadcast(ranks.in[1].get(), ranks.out[1].get(), 4, ncclFloat32, 0, ranks.comms[1],
                             ranks.streams[1].get());
      },
  };
  const int which = GENERATE(0, 1, 2, 3);
  REQUIRE(ncclGroupStart() == ncclSuccess);
  REQUIRE(ncclAllReduce(ranks.in[0].get(), ranks.out[0].get(), 4, ncclFloat32, ncclSum, ranks.comms[0],
                        ranks.streams[0].get()) == ncclSuccess);
  REQUIRE(calls[which]() == ncclSuccess);
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  CHECK_THAT(ncclGetLastError(ranks.comms[1]), ContainsSubstring("where an earlier rank calls ncclAllReduce of 4"));
  ranks.wait();
  ncclResult_t state = ncclSuccess;
  CHECK(ncclCommGetAsyncError(ranks.comms[0], &state) == ncclSuccess);
  CHECK(state == ncclInvalidUsage);
  CHECK(ranks.all_reduce() == ncclInvalidUsage);
}

TEST_CASE("one thread calls for several ranks only within a group", "[standins][nccl]") {
  Ranks ranks(2);
  CHECK(ncclAllReduce(ranks.in[0].get(), ranks.out[0].get(), 4, ncclFloat32, ncclSum, ranks.comms[0],
                      ranks.streams[0].get()) == ncclSuccess);
  CHECK(ncclAllReduce(ranks.in[1].get(), ranks.out[1].get(), 4, ncclFloat32, ncclSum, ranks.comms[1],
                      ranks.streams[1].get()) == ncclInvalidUsage);
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
}

TEST_CASE("collectives check their arguments", "[standins][nccl]") {
  Ranks ranks(2);
  const auto all_reduce = [&](const void* in, void* out, std::size_t count, ncclDataType_t type, cudaStream_t stream) {
    return ncclAllReduce(in, out, count, type, ncclSum, ranks.comms[0], stream);
  };
  float* in = ranks.in[0].get();
  float* out = ranks.out[0].get();
  cudaStream_t stream = ranks.streams[0].get();
  CHECK(all_reduce(in, nullptr, 4, ncclFloat32, stream) == ncclInvalidArgument);
  CHECK(all_reduce(in, out, 9, ncclFloat32, stream) == ncclInvalidArgument);
  CHECK(all_reduce(in, in + 1, 4, ncclFloat32, stream) == ncclInvalidArgument);
  CHECK(all_reduce(ranks.in[1].get(), out, 4, ncclFloat32, stream) == ncclInvalidArgument);
  CHECK(all_reduce(in, out, 4, ncclFloat16, stream) == ncclInvalidArgument);
  CHECK(all_reduce(in, out, 4, ncclFloat32, ranks.streams[1].get()) == ncclInvalidArgument);
  CHECK(ncclBroadcast(in, in, 4, ncclFloat32, 2, ranks.comms[0], stream) == ncclInvalidArgument);
  CHECK(ncclAllReduce(in, out, 4, ncclFloat32, ncclAvg, ranks.comms[0], stream) == ncclInvalidArgument);
}

TEST_CASE("a collective that hangs goes on when it is aborted", "[standins][nccl]") {
  Ranks ranks(2);
  simt::hang_collectives(true);
  REQUIRE(ranks.all_reduce() == ncclSuccess);
  simt::hang_collectives(false);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(cudaStreamQuery(ranks.streams[0].get()) == cudaErrorNotReady);
  std::thread watchdog([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.abort();
  });
  ranks.wait();
  watchdog.join();
  for (const auto& out : ranks.out) CHECK(first(out, 1) == std::vector<float>{-1});
}

TEST_CASE("Communicator over simulated GPUs", "[standins][nccl]") {
  namespace cuda = tandem::kernels::cuda;
  using tandem::CudaError;
  const std::array<int, 3> devices{0, 1, 2};
  cuda::Communicator comm(devices);
  REQUIRE(comm.size() == 3);
  std::vector<Memory<double>> in, out;
  std::vector<Stream> streams;
  for (int r = 0; r < 3; ++r) {
    in.emplace_back(r, std::vector<double>{1.5 * r, 2});
    out.emplace_back(r, std::vector<double>{-1, -1});
    streams.emplace_back(r);
  }
  const auto wait = [&] {
    for (const Stream& stream : streams) stream.wait();
  };
  const auto all_reduce = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    comm.all_reduce(r, in[i].get(), out[i].get(), 2, tandem::kFloat64, streams[i].get());
  };
  SECTION("from one thread") {
    cuda::Communicator::Group group;
    for (int r = 0; r < 3; ++r) {
      const auto i = static_cast<std::size_t>(r);
      all_reduce(r);
      comm.broadcast(r, in[i].get(), 1, tandem::kFloat64, 2, streams[i].get());
      comm.reduce(r, in[i].get(), in[i].get(), 2, tandem::kFloat64, 1, streams[i].get());
    }
    group.end();
    wait();
    comm.check_async();
    for (const auto& memory : out) CHECK(memory.values() == std::vector<double>{4.5, 6});
    CHECK(in[0].values() == std::vector<double>{3, 2});
    CHECK(in[1].values() == std::vector<double>{9, 6});
  }
  SECTION("from one thread per rank") {
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r) threads.emplace_back(all_reduce, r);
    for (std::thread& thread : threads) thread.join();
    wait();
    for (const auto& memory : out) CHECK(memory.values() == std::vector<double>{4.5, 6});
  }
  SECTION("ranks that disagree") {
    std::vector<CudaError> errors;
    try {
      cuda::Communicator::Group group;
      all_reduce(0);
      comm.all_reduce(1, in[1].get(), out[1].get(), 1, tandem::kFloat64, streams[1].get());
      group.end();
    } catch (const CudaError& error) {
      errors.push_back(error);
    }
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].code() == ncclInvalidUsage);
    CHECK_THROWS_AS(comm.check_async(), CudaError);
    wait();
  }
  SECTION("bool has no sum") {
    CHECK_THROWS_AS(comm.all_reduce(0, in[0].get(), out[0].get(), 8, tandem::kBool, streams[0].get()), CudaError);
  }
  SECTION("abort") {
    simt::hang_collectives(true);
    {
      cuda::Communicator::Group group;
      for (int r = 0; r < 3; ++r) all_reduce(r);
      group.end();
    }
    simt::hang_collectives(false);
    std::thread watchdog([&] { comm.abort(); });
    wait();
    watchdog.join();
    CHECK_THROWS_WITH(all_reduce(0), ContainsSubstring("aborted"));
  }
}

TEST_CASE("Communicator refuses a device twice", "[standins][nccl]") {
  const std::array<int, 2> devices{1, 1};
  CHECK_THROWS_WITH(tandem::kernels::cuda::Communicator(devices), ContainsSubstring("two ranks are on device 1"));
}
