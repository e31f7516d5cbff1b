#pragma once
// IDX, the format of MNIST: http://yann.lecun.com/exdb/mnist (end of the page).

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "../engine/tensor.h"
#include "byte_source.h"

namespace tandem::data {

/// Reads an IDX file, plain or compressed with gzip (told by content, not by name). Elements uint8, int32, float32 and
/// float64 keep their type; int8 and int16 become int32. Throws IoError, and FormatError, naming file, find and wish,
/// if the content is no IDX of 1 to 8 dimensions or has more or less data than it declares. No more memory is taken
/// than the data that is there needs.
Tensor read_idx(const std::filesystem::path& path);
/// The same from any source; `name` stands in messages.
Tensor read_idx(std::unique_ptr<ByteSource> source, const std::string& name);

/// Writes a plain IDX file, by way of AtomicFile. Takes uint8, int32, float32 and float64 (DTypeError else), of 1 to 8
/// dimensions of less than 2^32 (ShapeError else), on any device, with any strides.
void write_idx(const std::filesystem::path& path, const Tensor& tensor);

/// Examples and their classes.
struct Labelled {
  Tensor inputs;  ///< (n, ...), of the file's dtype
  Tensor labels;  ///< (n,) int64
};

/// Reads two IDX files that belong together. Throws FormatError, besides read_idx's reasons, if the labels are not a
/// list of integers, differ in number from the inputs, or one is not in [0, classes); its position is then named.
Labelled load_idx_pair(const std::filesystem::path& inputs, const std::filesystem::path& labels,
                       std::int64_t classes = 10);

}  // namespace tandem::data
