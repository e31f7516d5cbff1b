// IDX: two zero bytes, the type, the number of dimensions, each size as 32 bits, then the elements; all big-endian.

#include "idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "../engine/context.h"
#include "../engine/error.h"
#include "../engine/ops.h"
#include "atomic_file.h"
#include "gzip.h"

namespace tandem::data {
namespace {

struct Type {
  unsigned code;
  DType dtype;       ///< of the tensor
  std::size_t size;  ///< in the file
};
constexpr Type kTypes[] = {{0x08, kUInt8, 1}, {0x09, kInt32, 1},   {0x0B, kInt32, 2},
                           {0x0C, kInt32, 4}, {0x0D, kFloat32, 4}, {0x0E, kFloat64, 8}};

/// The unsigned integer of `sizeof(T)` bytes at `p`.
template <class T>
T load_big(const std::byte* p) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value << 8 | std::to_integer<T>(p[i]));
  return value;
}
template <class T>
void store_big(T value, std::byte* p) {
  for (std::size_t i = sizeof(T); i-- > 0; value = static_cast<T>(value >> 7 >> 1))
    p[i] = static_cast<std::byte>(value);
}

template <std::size_t kSize>
using Unsigned =
    std::conditional_t<kSize == 8, std::uint64_t, std::conditional_t<kSize == 4, std::uint32_t, std::uint8_t>>;

void decode(const Type& type, std::span<const std::byte> bytes, const Tensor& out) {
  if (type.code == 0x09) {
    std::transform(bytes.begin(), bytes.end(), out.data<std::int32_t>(),
                   [](std::byte b) { return static_cast<std::int8_t>(b); });
  } else if (type.code == 0x0B) {
    auto* p = out.data<std::int32_t>();
    for (std::size_t i = 0; i < bytes.size(); i += 2)
      *p++ = static_cast<std::int16_t>(load_big<std::uint16_t>(&bytes[i]));
  } else {
    visit_dtype(type.dtype, [&]<class T>(TypeTag<T>) {
      T* p = out.data<T>();
      for (std::size_t i = 0; i < bytes.size(); i += sizeof(T)) {
        *p++ = std::bit_cast<T>(load_big<Unsigned<sizeof(T)>>(&bytes[i]));
      }
    });
  }
}

}  // namespace

Tensor read_idx(const std::filesystem::path& path) {
  return read_idx(std::make_unique<FileSource>(path), path.string());
}

Tensor read_idx(std::unique_ptr<ByteSource> source, const std::string& name) {
  const auto fail = [&](const std::string& what) { throw FormatError("read_idx: " + name + ": " + what); };

  std::byte magic[4];
  std::size_t have = source->read(magic);
  if (is_gzip(std::span(magic, have))) {
    source = gunzip(std::move(source), std::span(magic, have), name);
    have = source->read(magic);
  }
  if (have < 4) fail(fmt::format("{} bytes are too few for an IDX file", have));
  const auto code = load_big<std::uint32_t>(magic);
  const auto* type = std::ranges::find(kTypes, code >> 8, &Type::code);
  if (type == std::end(kTypes)) {
    fail(
        fmt::format("starts with 0x{:08x}; an IDX file starts with 0x0000, a type from 08, 09, 0b to 0e, and the "
                    "number of dimensions",
                    code));
  }
  const unsigned dims = code & 0xff;
  if (dims < 1 || dims > kMaxDims) fail(fmt::format("has {} dimensions, 1 to {} can be read", dims, kMaxDims));

  std::byte sizes[4 * kMaxDims];
  have = source->read(std::span(sizes, 4 * dims));
  if (have < 4 * dims) fail(fmt::format("ends within its header, after {} of {} bytes", 4 + have, 4 + 4 * dims));
  Shape shape;
  std::int64_t wanted = 8;  // a multiple of what one element takes in the file or in the tensor
  bool overflow = false;
  for (unsigned i = 0; i < dims; ++i) {
    shape.push_back(load_big<std::uint32_t>(sizes + 4 * i));
    overflow |= __builtin_mul_overflow(wanted, std::max<std::int64_t>(shape.back(), 1), &wanted);
  }
  if (overflow) fail(fmt::format("declares the shape {}, which is more than 2^63 bytes", str(shape)));

  const std::size_t size = static_cast<std::size_t>(shape.numel()) * type->size;
  const std::vector<std::byte> bytes = read_up_to(*source, size);
  const auto declared = [&] { return fmt::format("declares the shape {}, {} bytes of data", str(shape), size); };
  if (bytes.size() < size) fail(fmt::format("{}, but has {}", declared(), bytes.size()));
  if (source->read(std::span(magic, 1)) != 0) fail(declared() + ", but has more");

  Tensor tensor = empty(shape, type->dtype, cpu());
  decode(*type, bytes, tensor);
  return tensor;
}

void write_idx(const std::filesystem::path& path, const Tensor& tensor) {
  const auto fail = [&] { return fmt::format("write_idx: {} for {}: ", describe(tensor), path.string()); };
  if (!tensor.defined()) throw ValueError(fail() + "a tensor is wanted");
  const auto* type = std::ranges::find_if(
      kTypes, [&](const Type& t) { return t.dtype == tensor.dtype() && t.size == size_of(tensor.dtype()); });
  if (type == std::end(kTypes)) throw DTypeError(fail() + "IDX has uint8, int32, float32 and float64");
  if (tensor.dim() == 0) throw ShapeError(fail() + "IDX has 1 to 8 dimensions");

  std::vector<std::byte> bytes(4 + 4 * static_cast<std::size_t>(tensor.dim()) + tensor.nbytes());
  std::byte* at = bytes.data();
  store_big(type->code << 8 | static_cast<unsigned>(tensor.dim()), at);
  for (std::int64_t size : tensor.sizes()) {
    if (size > UINT32_MAX) throw ShapeError(fail() + "IDX has sizes below 2^32");
    store_big(static_cast<std::uint32_t>(size), at += 4);
  }
  at += 4;

  const NoGradGuard no_grad;
  const Tensor source = tensor.to(cpu()).contiguous();
  visit_dtype(source.dtype(), [&]<class T>(TypeTag<T>) {
    const T* values = source.data<T>();
    for (std::int64_t i = 0; i < source.numel(); ++i, at += sizeof(T)) {
      store_big(std::bit_cast<Unsigned<sizeof(T)>>(values[i]), at);
    }
  });
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

Labelled load_idx_pair(const std::filesystem::path& inputs, const std::filesystem::path& labels, std::int64_t classes) {
  Labelled result{read_idx(inputs), read_idx(labels)};
  const auto fail = [&](const std::string& what) {
    throw FormatError("load_idx_pair: " + labels.string() + ": " + what);
  };
  if (result.labels.dim() != 1 || is_floating(result.labels.dtype())) {
    fail("is " + describe(result.labels) + "; labels are a list of integers");
  }
  const std::int64_t n = result.inputs.size(0);
  if (result.labels.numel() != n) {
    fail(fmt::format("has {} labels, but {} has {} inputs", result.labels.numel(), inputs.string(), n));
  }
  result.labels = result.labels.to(kInt64);
  const auto* values = result.labels.data<std::int64_t>();
  const auto* bad = std::find_if(values, values + n, [&](std::int64_t v) { return v < 0 || v >= classes; });
  if (bad != values + n) fail(fmt::format("label {} is {}; classes are 0 to {}", bad - values, *bad, classes - 1));
  return result;
}

}  // namespace tandem::data
