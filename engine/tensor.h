#pragma once
// Tensor: a cheap handle to a strided array on a device, with its place on the tape.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <vector>

#include "device.h"
#include "ref.h"
#include "shape.h"
#include "storage.h"

namespace tandem {

class Node;
class Tensor;

/// Where a tensor comes from: output `index` of a tape node. For a leaf, its gradient accumulator.
struct Edge {
  Ref<Node> node;
  std::uint32_t index = 0;
  explicit operator bool() const { return static_cast<bool>(node); }
};

/// What a tensor has on the tape; plain tensors have none.
struct AutogradMeta {
  Edge edge;
  bool is_leaf = true;
  std::shared_ptr<Tensor> retained;  ///< gradient of a non-leaf after retain_grad
};

/// The body of a tensor. Reach it through Tensor unless you write operations.
class TensorImpl : public RefCounted<TensorImpl> {
 public:
  Ref<Storage> storage;
  std::int64_t offset = 0;  ///< in elements
  Shape shape, strides;
  std::int64_t numel = 0;
  DType dtype = DType::Float32;
  bool contiguous = true;
  bool requires_grad = false;
  bool no_grad_view = false;  ///< a view that was made under no_grad
  bool multi_view = false;    ///< one of several that one op made of shared memory, or a view of such a one
  bool exclusive = false;     ///< shares its storage, but its elements belong to it alone
  std::uint32_t history = 0;  ///< of a base: how often its history was rewritten; of a view: the count it has seen
  Ref<TensorImpl> base;       ///< of a view: the tensor whose memory it shows, never itself a view
  Ref<Version> version;       ///< null: the storage's
  std::unique_ptr<AutogradMeta> meta;

  std::byte* data() const { return storage->data() + offset * static_cast<std::int64_t>(size_of(dtype)); }
  static void destroy(TensorImpl* t);
};

using TensorHook = std::function<Tensor(const Tensor& grad)>;

/// Removes its hook when told to; does nothing if the hook is gone.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  void remove() {
    if (auto f = std::exchange(remove_, nullptr)) f();
  }

 private:
  std::function<void()> remove_;
};

/// A multi-dimensional array of one dtype on one device. Copying a Tensor copies the handle; both then name the same
/// elements. A default-constructed Tensor is undefined: it has no elements, shape or dtype, and asking for them is a
/// ValueError. Functions on tensors are in ops.h; the most used have a method of the same name here. Distinct tensors
/// may be used from distinct threads.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return static_cast<bool>(impl_); }
  explicit operator bool() const = delete;

  int dim() const { return body("dim").shape.size(); }
  const Shape& sizes() const { return body("sizes").shape; }
  const Shape& strides() const { return body("strides").strides; }
  std::int64_t size(std::int64_t dim) const;
  std::int64_t stride(std::int64_t dim) const;
  std::int64_t numel() const { return body("numel").numel; }
  DType dtype() const { return body("dtype").dtype; }
  Device device() const { return body("device").storage->device(); }
  std::size_t nbytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype()); }
  bool is_contiguous() const { return body("is_contiguous").contiguous; }
  std::int64_t storage_offset() const { return body("storage_offset").offset; }

  /// Address of the first element, on the tensor's device: the host may not touch what lies on a CUDA device.
  void* data_ptr() const { return body("data_ptr").data(); }
  /// As data_ptr, typed. Throws DTypeError when T is not the dtype. Writing through it goes unnoticed by the tape.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>());
    return reinterpret_cast<T*>(impl_->data());
  }
  /// The value of a one-element tensor, converted. Throws ValueError for other sizes.
  template <class T = double>
  T item() const {
    return item_scalar().to<T>();
  }
  /// All elements in row-major order, converted.
  template <class T = double>
  std::vector<T> to_vector() const;

  // ---- autograd
  bool requires_grad() const;
  /// Throws AutogradError on a non-leaf when turned off, DTypeError for integer dtypes.
  Tensor& requires_grad_(bool on = true);
  bool is_leaf() const;
  /// The gradient that backward() left here; undefined if none.
  Tensor grad() const;
  /// Replaces the gradient; an undefined tensor clears it. Shape, dtype and device must be the tensor's.
  void set_grad(const Tensor& grad) const;
  void zero_grad() const { set_grad(Tensor()); }
  /// Keeps the gradient of a non-leaf too.
  void retain_grad() const;
  /// Called with the tensor's whole gradient in backward(); a defined result replaces it.
  HookHandle register_hook(TensorHook hook) const;
  /// See backward() in autograd.h.
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false) const;
  /// The same elements, off the tape. Shares memory and version.
  Tensor detach() const;
  /// The node that made this tensor; null for a leaf.
  Ref<Node> grad_fn() const;
  std::uint32_t version() const {
    const TensorImpl& i = body("version");
    return i.version ? i.version->value() : i.storage->version();
  }

  // ---- views and copies: see ops.h
  Tensor contiguous() const;
  Tensor clone() const;
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor reshape(const Shape& shape) const;
  Tensor view(const Shape& shape) const;
  Tensor flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) const;
  Tensor permute(const Shape& dims) const;
  Tensor transpose(std::int64_t dim0, std::int64_t dim1) const;
  Tensor t() const;
  Tensor squeeze() const;
  Tensor squeeze(std::int64_t dim) const;
  Tensor unsqueeze(std::int64_t dim) const;
  Tensor expand(const Shape& shape) const;
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const;
  Tensor select(std::int64_t dim, std::int64_t index) const;
  Tensor slice(std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> end,
               std::int64_t step = 1) const;
  /// select(0, index).
  Tensor operator[](std::int64_t index) const { return select(0, index); }
  std::vector<Tensor> split(std::int64_t size, std::int64_t dim = 0) const;
  std::vector<Tensor> chunk(std::int64_t chunks, std::int64_t dim = 0) const;

  // ---- reductions
  Tensor sum() const;
  Tensor sum(const Shape& dims, bool keepdim = false) const;
  Tensor mean() const;
  Tensor mean(const Shape& dims, bool keepdim = false) const;
  Tensor max() const;
  Tensor min() const;
  Tensor argmax() const;
  Tensor argmax(std::int64_t dim, bool keepdim = false) const;
  Tensor matmul(const Tensor& other) const;

  // ---- in place; they return *this. The result may not be larger than the tensor nor of a higher dtype kind.
  Tensor& fill_(const Scalar& value);
  Tensor& zero_() { return fill_(0); }
  Tensor& copy_(const Tensor& src);
  Tensor& add_(const Tensor& other);
  Tensor& add_(const Scalar& other);
  Tensor& sub_(const Tensor& other);
  Tensor& sub_(const Scalar& other);
  Tensor& mul_(const Tensor& other);
  Tensor& mul_(const Scalar& other);
  Tensor& div_(const Tensor& other);
  Tensor& div_(const Scalar& other);
  Tensor& pow_(const Scalar& exponent);
  Tensor& clamp_(const Scalar& lo, const Scalar& hi);
  Tensor& exp_();
  Tensor& log_();
  Tensor& sqrt_();
  Tensor& abs_();
  Tensor& neg_();
  Tensor& tanh_();
  Tensor& sigmoid_();
  Tensor& relu_();
  /// Draws from the device's generator.
  Tensor& uniform_(double lo = 0, double hi = 1);
  Tensor& normal_(double mean = 0, double std = 1);

  Tensor& operator+=(const Tensor& o) { return add_(o); }
  Tensor& operator-=(const Tensor& o) { return sub_(o); }
  Tensor& operator*=(const Tensor& o) { return mul_(o); }
  Tensor& operator/=(const Tensor& o) { return div_(o); }
  Tensor& operator+=(const Scalar& o) { return add_(o); }
  Tensor& operator-=(const Scalar& o) { return sub_(o); }
  Tensor& operator*=(const Scalar& o) { return mul_(o); }
  Tensor& operator/=(const Scalar& o) { return div_(o); }

  /// Makes this tensor's identity show other's elements: storage, dtype and device change under every handle. For
  /// leaves only, as when a module moves to another device; a gradient is converted along. Throws AutogradError else.
  void set_data(const Tensor& other) const;
  /// Whether both are handles to one tensor.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  TensorImpl* impl() const { return impl_.get(); }
  const Ref<TensorImpl>& ref() const { return impl_; }

 private:
  /// ValueError, naming the method, for an undefined tensor.
  const TensorImpl& body(const char* method) const {
    if (!impl_) [[unlikely]]
      throw_undefined(method);
    return *impl_;
  }
  [[noreturn]] static void throw_undefined(const char* method);
  void check_dtype(DType wanted) const;
  Scalar item_scalar() const;

  Ref<TensorImpl> impl_;
};

extern template std::vector<double> Tensor::to_vector<double>() const;
extern template std::vector<float> Tensor::to_vector<float>() const;
extern template std::vector<std::int64_t> Tensor::to_vector<std::int64_t>() const;
extern template std::vector<std::int32_t> Tensor::to_vector<std::int32_t>() const;
extern template std::vector<std::uint8_t> Tensor::to_vector<std::uint8_t>() const;

/// Shape, dtype, device and, for small tensors, the values.
std::ostream& operator<<(std::ostream& out, const Tensor& t);
/// "float32 (2, 3) on cpu:0", for messages; "undefined".
std::string describe(const Tensor& t);

}  // namespace tandem
