// The safetensors format: checks, checksums and elements. Its JSON is in safetensors_header.cpp.

#include "safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "../engine/context.h"
#include "../engine/error.h"
#include "../engine/ops.h"
#include "atomic_file.h"
#include "byte_source.h"
#include "crc32.h"
#include "safetensors_header.h"

namespace tandem::data {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied as they are");

struct FileType {
  std::string_view name;
  DType dtype;       ///< of the tensor
  std::size_t size;  ///< of an element in the file
};
constexpr FileType kTypes[] = {{"BOOL", kBool, 1},   {"U8", kUInt8, 1},    {"I32", kInt32, 4},   {"I64", kInt64, 8},
                               {"F32", kFloat32, 4}, {"F64", kFloat64, 8}, {"F16", kFloat32, 2}, {"BF16", kFloat32, 2}};

constexpr std::uint64_t kLongestHeader = 100'000'000;  // as the reference
constexpr std::size_t kLengthBytes = 8;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string checksum_digits(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

/// Of a whole file whose checksum's digits are at `at`.
std::uint32_t checksum(std::span<const std::byte> bytes, std::size_t at) {
  static constexpr std::string_view kZeros = "00000000";
  std::uint32_t crc = crc32(bytes.first(at));
  crc = crc32(std::as_bytes(std::span(kZeros)), crc);
  return crc32(bytes.subspan(at + kChecksumDigits), crc);
}

/// IEEE 754 binary16.
float float_of_half(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h >> 15) << 31, exponent = h >> 10 & 0x1f, fraction = h & 0x3ff;
  if (exponent == 0) return std::copysign(std::ldexp(static_cast<float>(fraction), -24), sign ? -1.F : 1.F);
  const std::uint32_t wide = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}
/// The upper half of a float32.
float float_of_bfloat16(std::uint16_t b) { return std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16); }

template <class F>
void widen(std::span<const std::byte> bytes, float* out, F convert) {
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    std::uint16_t half;
    std::memcpy(&half, &bytes[i], 2);
    *out++ = convert(half);
  }
}

/// A file's parts, checked step by step.
class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {
    if (bytes.size() < kLengthBytes) fail(fmt::format("{} bytes are too few for a safetensors file", bytes.size()));
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > kLongestHeader) {
      fail(fmt::format("declares a header of {} bytes, at most {} are wanted", length, kLongestHeader));
    }
    if (length > bytes.size() - kLengthBytes) {
      fail(fmt::format("declares a header of {} bytes, but has {} bytes in all", length, bytes.size()));
    }
    header_ = parse_header(text_of(bytes.subspan(kLengthBytes, length)), name);
    data_ = bytes.subspan(kLengthBytes + length);
  }

  TensorFile load(const LoadTensorsOptions& options) {
    verify_checksum(options.require_checksum);
    std::vector<const FileType*> types;
    for (const HeaderEntry& e : header_.entries) types.push_back(&checked_type(e));
    check_ranges();

    TensorFile file;
    file.metadata = std::move(header_.metadata);
    file.metadata.erase(std::string(kChecksumKey));
    for (std::size_t i = 0; i < types.size(); ++i) {
      HeaderEntry& e = header_.entries[i];
      Tensor tensor = load_tensor(e, *types[i]);
      file.tensors.emplace_back(std::move(e.name), std::move(tensor));
    }
    return file;
  }

 private:
  void verify_checksum(bool required) const {
    if (header_.checksum_at == std::string_view::npos) {
      if (required) fail(fmt::format("has no checksum (\"{}\" in its metadata)", kChecksumKey));
      return;
    }
    const std::size_t at = kLengthBytes + header_.checksum_at;
    const std::string_view stored = text_of(bytes_.subspan(at, kChecksumDigits));
    const std::string actual = checksum_digits(checksum(bytes_, at));
    if (stored != actual) {
      fail(fmt::format("is damaged: its checksum is {}, but it says {}", actual, in_quotes(stored)));
    }
  }

  const FileType& checked_type(const HeaderEntry& e) const {
    const auto* type = std::ranges::find(kTypes, e.dtype, &FileType::name);
    if (type == std::end(kTypes)) {
      fail(e, fmt::format("dtype {} is not among F64, F32, F16, BF16, I64, I32, U8, BOOL", in_quotes(e.dtype)));
    }
    // Sizes of 0 do not excuse the others, and 8 bytes an element are assumed, so that any dtype can hold the shape.
    std::int64_t bytes = 8;
    for (const std::int64_t size : e.shape) {
      if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
        fail(e, fmt::format("shape {} is more than 2^63 bytes", str(e.shape)));
      }
    }
    if (e.end < e.begin) fail(e, fmt::format("its bytes are {} to {}, which is backwards", e.begin, e.end));
    const std::uint64_t wanted = static_cast<std::uint64_t>(e.shape.numel()) * type->size;
    if (e.end - e.begin != wanted) {
      fail(e, fmt::format("{} {} takes {} bytes, but bytes {} to {} are {}", e.dtype, str(e.shape), wanted, e.begin,
                          e.end, e.end - e.begin));
    }
    return *type;
  }

  /// The ranges of all tensors cover the data, each byte once.
  void check_ranges() const {
    std::vector<const HeaderEntry*> in_order;
    for (const HeaderEntry& e : header_.entries) in_order.push_back(&e);
    std::ranges::sort(in_order, {}, [](const HeaderEntry* e) { return std::pair(e->begin, e->end); });
    std::uint64_t at = 0;
    for (const HeaderEntry* e : in_order) {
      if (e->begin != at) {
        fail(*e, fmt::format("its bytes start at {}, but those before it end at {}", e->begin, at));
      }
      at = e->end;
      if (at > data_.size()) fail(*e, fmt::format("its bytes end at {}, but there are {}", at, data_.size()));
    }
    if (at != data_.size()) fail(fmt::format("tensors take {} bytes, but there are {}", at, data_.size()));
  }

  Tensor load_tensor(const HeaderEntry& e, const FileType& type) const {
    const auto bytes = data_.subspan(e.begin, e.end - e.begin);
    if (type.dtype == kBool && std::ranges::any_of(bytes, [](std::byte b) { return b > std::byte{1}; })) {
      fail(e, "a BOOL is neither 0 nor 1");
    }
    Tensor tensor = empty(e.shape, type.dtype, cpu());
    if (type.name == "F16") {
      widen(bytes, tensor.data<float>(), float_of_half);
    } else if (type.name == "BF16") {
      widen(bytes, tensor.data<float>(), float_of_bfloat16);
    } else if (!bytes.empty()) {
      std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    }
    return tensor;
  }

  [[noreturn]] void fail(const std::string& what) const { throw FormatError(name_ + ": " + what); }
  [[noreturn]] void fail(const HeaderEntry& e, const std::string& what) const {
    fail("tensor " + in_quotes(e.name) + ": " + what);
  }

  std::span<const std::byte> bytes_, data_;
  const std::string& name_;
  Header header_;
};

void check_texts(const TensorFile& file) {
  const auto fail = [](const std::string& what) { throw ValueError("save_tensors: " + what); };
  std::unordered_set<std::string_view> names;
  for (const auto& [name, tensor] : file.tensors) {
    if (!tensor.defined()) fail("tensor " + in_quotes(name) + " is undefined");
    if (!is_utf8(name)) fail("a name is not UTF-8");
    if (const char* fault = name_fault(name)) fail("the name " + in_quotes(name) + " " + fault);
    if (name == kMetadataKey || !names.insert(name).second) fail("the name " + in_quotes(name) + " is taken");
  }
  for (const auto& [key, value] : file.metadata) {
    if (key == kChecksumKey) fail("the metadata key " + in_quotes(key) + " is taken");
    if (!is_utf8(key) || !is_utf8(value)) {
      fail("the metadata of " + in_quotes(is_utf8(key) ? key : "") + " is not UTF-8");
    }
  }
}

std::span<const std::byte> bytes_of(const Tensor& t) {
  return {static_cast<const std::byte*>(t.data_ptr()), t.nbytes()};
}

}  // namespace

void save_tensors(const std::filesystem::path& path, const TensorFile& file) {
  check_texts(file);
  const NoGradGuard no_grad;
  std::vector<Tensor> tensors;
  Header header;
  header.metadata = file.metadata;
  header.metadata.emplace(kChecksumKey, std::string(kChecksumDigits, '0'));
  for (const auto& [name, tensor] : file.tensors) {
    tensors.push_back(tensor.to(cpu()).contiguous());
    const auto* type = std::ranges::find(kTypes, tensor.dtype(), &FileType::dtype);
    header.entries.push_back({name, std::string(type->name), tensor.sizes(), 0, 0});
  }

  // Larger elements come first, so that each tensor is aligned.
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return size_of(tensors[i].dtype()); });
  std::uint64_t at = 0;
  for (const std::size_t i : order) {
    header.entries[i].begin = at;
    header.entries[i].end = at += tensors[i].nbytes();
  }

  std::string front = write_header(header);
  const std::uint64_t length = front.size();
  if (length > kLongestHeader) throw ValueError("save_tensors: the names and metadata are too long for the format");
  front.insert(0, reinterpret_cast<const char*>(&length), kLengthBytes);

  std::uint32_t crc = crc32(std::as_bytes(std::span(front)));
  for (const std::size_t i : order) crc = crc32(bytes_of(tensors[i]), crc);
  front.replace(kLengthBytes + header.checksum_at, kChecksumDigits, checksum_digits(crc));

  AtomicFile out(path);
  out.write(front);
  for (const std::size_t i : order) out.write(bytes_of(tensors[i]));
  out.commit();
}

TensorFile load_tensors(const std::filesystem::path& path, const LoadTensorsOptions& options) {
  return parse_tensors(read_file(path), path.string(), options);
}

TensorFile parse_tensors(std::span<const std::byte> bytes, const std::string& name, const LoadTensorsOptions& options) {
  return Parser(bytes, name).load(options);
}

}  // namespace tandem::data
