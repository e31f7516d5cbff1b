// gzip by zlib.

#include <zlib.h>

#include <algorithm>
#include <array>
#include <new>

#include "../engine/error.h"
#include "gzip.h"

namespace tandem::data {
namespace {

class GzipSource : public ByteSource {
 public:
  GzipSource(std::unique_ptr<ByteSource> source, std::span<const std::byte> ahead, const std::string& name)
      : source_(std::move(source)), name_(name) {
    std::copy(ahead.begin(), ahead.end(), input_.begin());
    set_input(ahead.size());
    constexpr int kOnlyGzip = 16;
    if (inflateInit2(&z_, MAX_WBITS + kOnlyGzip) != Z_OK) throw std::bad_alloc();
  }
  ~GzipSource() override { inflateEnd(&z_); }

  std::size_t read(std::span<std::byte> out) override {
    std::size_t done = 0;
    while (done < out.size()) {
      if (z_.avail_in == 0 && !refill()) break;
      z_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      z_.avail_out = static_cast<uInt>(std::min<std::size_t>(out.size() - done, 1U << 30));
      const uInt room = z_.avail_out;
      const int status = inflate(&z_, Z_NO_FLUSH);
      done += room - z_.avail_out;
      between_members_ = status == Z_STREAM_END;
      if (between_members_) {
        inflateReset(&z_);
      } else if (status == Z_MEM_ERROR) {
        throw std::bad_alloc();
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        throw FormatError(name_ + ": damaged gzip data: " + (z_.msg ? z_.msg : "unknown kind"));
      }
    }
    return done;
  }

 private:
  /// False at a proper end.
  bool refill() {
    set_input(source_->read(input_));
    if (z_.avail_in == 0 && !between_members_) throw FormatError(name_ + ": the gzip data is truncated");
    return z_.avail_in > 0;
  }
  void set_input(std::size_t n) {
    z_.next_in = reinterpret_cast<Bytef*>(input_.data());
    z_.avail_in = static_cast<uInt>(n);
  }

  std::unique_ptr<ByteSource> source_;
  std::string name_;
  z_stream z_{};
  std::array<std::byte, 1 << 16> input_;
  bool between_members_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> source, std::span<const std::byte> ahead,
                                   const std::string& name) {
  return std::make_unique<GzipSource>(std::move(source), ahead, name);
}

}  // namespace tandem::data
