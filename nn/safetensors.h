#pragma once
// Named tensors in one file, in the safetensors format: https://huggingface.co/docs/safetensors. Python reads what is
// written here, and the other way round.
//
// A file is: the header's length as 8 bytes, little-endian; the header, JSON: for every name dtype, shape and the
// range of its bytes in what follows; the elements, row-major, little-endian, without gaps.

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../engine/tensor.h"

namespace tandem::data {

/// What a file holds. Tensors keep their order. Names are names only, never used as paths.
struct TensorFile {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes a file by way of AtomicFile: it is whole or not there, and an older one stays until then. Tensors may be on
/// any device, with any strides. The metadata gets one more entry, "tandem.crc32": the CRC-32 of the file with the
/// eight hexadecimal digits of this entry taken as '0'. Data starts at a multiple of 8 bytes, every tensor at a
/// multiple of its element size. Throws IoError; ValueError if a tensor is undefined, a name comes twice, is
/// "__metadata__", contains NUL or "../", or a text is not UTF-8.
void save_tensors(const std::filesystem::path& path, const TensorFile& file);

struct LoadTensorsOptions {
  /// Whether a file without "tandem.crc32" is refused. With it, any truncation and any flipped bit is a FormatError.
  bool require_checksum = false;
};

/// Reads a file into CPU tensors. F16 and BF16 become float32; of the other dtypes F64, F32, I64, I32, U8 and BOOL are
/// known. The entry "tandem.crc32" is verified if there is one, and left out of the result. Throws IoError, and
/// FormatError, naming file and tensor, for whatever is not as the format wants it: then nothing is loaded. Stricter
/// than the reference in this: no duplicate or unknown keys, no name with NUL or "../", no byte but 0 and 1 in a BOOL.
/// Memory is bounded by a small multiple of the file's size.
TensorFile load_tensors(const std::filesystem::path& path, const LoadTensorsOptions& options = {});
/// The same for a file in memory; `name` stands in messages.
TensorFile parse_tensors(std::span<const std::byte> bytes, const std::string& name,
                         const LoadTensorsOptions& options = {});

}  // namespace tandem::data
