// The CUDA backend beside the CPU backend: the same operations on the same arrays.

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../catch.h"
#include "../kernels/device_array.h"

using namespace tandem;
using namespace tandem::kernels;

namespace {

using Shape = std::vector<std::int64_t>;

/// Every element of `got` is that of `wanted`, NaN included, up to a relative tolerance.
template <class T>
void check_close(const Array<T>& got, const Array<T>& wanted, double tolerance) {
  REQUIRE(got.size() == wanted.size());
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const auto a = static_cast<double>(got[i]), b = static_cast<double>(wanted[i]);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b))) continue;
    FAIL("element " << i << " is " << a << ", wanted " << b);
  }
}

/// Runs `f(backend, stream, out, inputs)` on both backends and compares `out`.
template <class T, class In>
void compare_backends(Array<T> out, std::vector<Array<In>> inputs, double tolerance,
                      const std::function<void(const Backend&, Stream&, const View&, const std::vector<View>&)>& f) {
  Array<T> wanted = out;
  std::vector<Array<In>> own = inputs;  // optimizers change theirs
  std::vector<View> views;
  for (Array<In>& x : own) views.push_back(x.view());
  Stream cpu;
  f(cpu_backend(), cpu, wanted.view(), views);

  DeviceArray<T> result(out);
  std::vector<std::unique_ptr<DeviceArray<In>>> device;
  views.clear();
  for (Array<In>& x : inputs) {
    device.push_back(std::make_unique<DeviceArray<In>>(x));
    views.push_back(device.back()->view());
  }
  Stream stream = device_stream();
  f(cuda_backend(), stream, result.view(), views);
  check_close(result.host(), wanted, tolerance);
}

/// Dimensions in reverse order in memory.
template <class T>
Array<T> transposed(Array<T> a) {
  std::int64_t step = 1;
  for (std::size_t d = 0; d < a.shape.size(); ++d) {
    a.strides[d] = step;
    step *= a.shape[d];
  }
  return a;
}

template <class T>
constexpr double kTolerance = sizeof(T) == 4 ? 2e-6 : 1e-14;

}  // namespace

TEMPLATE_TEST_CASE("cuda: unary ops", "", float, double) {
  using T = TestType;
  for (const Shape& shape : {Shape{1000}, Shape{7, 33}, Shape{0}, Shape{3, 1, 5, 2}}) {
    const auto x = Array<T>(shape).normal(1, 1.5, 1);
    const auto g = Array<T>(shape).normal(2);
    for (const bool strided : {false, true}) {
      const auto in = strided ? transposed(x) : x;
#define TANDEM_CASE(Op, name)                                                                           \
  compare_backends<T, T>(Array<T>(shape), {in}, kTolerance<T>,                                          \
                         [](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) { \
                           b.unary(s, UnaryOp::Op, out, v[0]);                                          \
                         });                                                                            \
  compare_backends<T, T>(Array<T>(shape), {g, in}, kTolerance<T>,                                       \
                         [](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) { \
                           b.unary_backward(s, UnaryOp::Op, out, v[0], v[1]);                           \
                         });
      TANDEM_UNARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
    }
  }
}

TEMPLATE_TEST_CASE("cuda: binary ops, comparisons and choices", "", float, double, std::int32_t, std::int64_t,
                   std::uint8_t) {
  using T = TestType;
  const int low = std::is_unsigned_v<T> ? 0 : -4;
  const auto x = Array<T>({9, 37}).integers(1, low), y = Array<T>({9, 37}).integers(2, low);
  const auto row = Array<T>({37}).integers(3, low);
  for (const std::vector<Array<T>>& inputs :
       {std::vector<Array<T>>{x, y}, {x, row}, {row, x}, {transposed(x), y}, {x, transposed(y)}}) {
#define TANDEM_CASE(Op)                                                                                   \
  if (BinaryOp::Op != BinaryOp::Div || std::is_floating_point_v<T>) {                                     \
    compare_backends<T, T>(Array<T>({9, 37}), inputs, kTolerance<T>,                                      \
                           [](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) { \
                             b.binary(s, BinaryOp::Op, out, v[0], v[1]);                                  \
                             b.binary(s, BinaryOp::Op, out, v[0], Scalar(2));                             \
                             b.binary(s, BinaryOp::Op, out, Scalar(3), v[1]);                             \
                           });                                                                            \
  }
    TANDEM_BINARY_OPS(TANDEM_CASE)
#undef TANDEM_CASE
#define TANDEM_CASE(Op)                                                                                            \
  compare_backends<std::uint8_t, T>(Array<std::uint8_t>({9, 37}), inputs, 0,                                       \
                                    [](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) { \
                                      View booleans = out;                                                         \
                                      booleans.dtype = kBool;                                                      \
                                      b.compare(s, CompareOp::Op, booleans, v[0], v[1]);                           \
                                    });
    TANDEM_COMPARE_OPS(TANDEM_CASE)
#undef TANDEM_CASE
  }
  compare_backends<T, T>(Array<T>({9, 37}), {x}, 0,
                         [](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) {
                           b.clamp(s, out, v[0], Scalar(1), Scalar(2));
                         });
}

TEMPLATE_TEST_CASE("cuda: copies, casts and ranges", "", float, double, std::int64_t, std::uint8_t) {
  using T = TestType;
  const auto x = Array<double>({5, 6, 7}).integers(1, 0, 100);
  for (const auto& in : {x, transposed(x)}) {
    compare_backends<T, double>(
        Array<T>({5, 6, 7}), {in}, 0,
        [](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) { b.copy(s, out, v[0]); });
  }
  compare_backends<T, T>(Array<T>({300}), {}, 0,
                         [](const Backend& b, Stream& s, const View& out, const std::vector<View>&) {
                           b.fill(s, out, Scalar(7));
                           b.arange(s, out, Scalar(3), Scalar(2));
                         });
}

TEMPLATE_TEST_CASE("cuda: reductions", "", float, double, std::int64_t) {
  using T = TestType;
  for (const Shape& shape :
       {Shape{1, 1}, Shape{3, 1025}, Shape{1000, 3}, Shape{2, 70000}, Shape{31, 33}, Shape{4, 0}}) {
    const auto x = Array<T>(shape).integers(5, -9, 9);
    for (int dims = 1; dims < 4; ++dims) {
      Shape kept = shape;
      for (std::size_t d = 0; d < 2; ++d) {
        if ((dims >> d & 1) != 0) kept[d] = 1;
      }
      for (const auto& in : {x, transposed(x)}) {
        for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min}) {
          if (op != ReduceOp::Sum && shape[1] == 0) continue;
          compare_backends<T, T>(Array<T>(kept), {in}, kTolerance<T>,
                                 [=](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) {
                                   b.reduce(s, op, out, v[0]);
                                 });
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("cuda: softmax and its gradient", "", float, double) {
  using T = TestType;
  for (const Shape& shape : {Shape{5, 10, 3}, Shape{2, 1030, 1}, Shape{1, 1, 4099}, Shape{3, 33, 40}}) {
    const auto x = Array<T>(shape).normal(3), g = Array<T>(shape).normal(4);
    for (int dim = 0; dim < 3; ++dim) {
      for (const bool log : {false, true}) {
        compare_backends<T, T>(Array<T>(shape), {x}, 4 * kTolerance<T>,
                               [=](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) {
                                 b.softmax(s, out, v[0], dim, log);
                               });
        compare_backends<T, T>(Array<T>(shape), {g, x}, 50 * kTolerance<T>,
                               [=](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) {
                                 b.softmax_backward(s, out, v[0], v[1], dim, log);
                               });
      }
    }
  }
}

TEMPLATE_TEST_CASE("cuda: optimizers", "", float, double) {
  using T = TestType;
  for (const bool first : {true, false}) {
    compare_backends<T, T>(Array<T>({1000}).normal(1), {Array<T>({1000}).normal(2), Array<T>({1000}).normal(3)},
                           kTolerance<T>,
                           [=](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) {
                             b.sgd_step(s, out, v[0], v[1], {0.1, 0.9, 0.1, 0.01, true, first});
                             b.sgd_step(s, out, v[0], {}, {0.1, 0, 0, 0.01, false, first});
                           });
    compare_backends<T, T>(Array<T>({1000}).normal(1),
                           {Array<T>({1000}).normal(2), Array<T>({1000}).normal(3), Array<T>({1000}).normal(4, 9)},
                           kTolerance<T>,
                           [=](const Backend& b, Stream& s, const View& out, const std::vector<View>& v) {
                             b.adam_step(s, out, v[0], v[1], v[2], {0.1, 0.9, 0.999, 1e-8, 0.01, 3, first});
                           });
  }
}
