// Stands in for gzip_zlib.cpp in a build without zlib.

#include "../engine/error.h"
#include "gzip.h"

namespace tandem::data {

std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource>, std::span<const std::byte>, const std::string& name) {
  throw IoError(name + ": is compressed with gzip, and Tandem was built without zlib");
}

}  // namespace tandem::data
