// A reader and a writer for exactly the JSON of safetensors headers.

#include "safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_set>

#include "../engine/error.h"

namespace tandem::data {
namespace {

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Header header() {
    Header header;
    if (!text_.starts_with('{')) fail("the header does not start with '{'");
    if (!is_utf8(text_)) fail("the header is not UTF-8");
    std::unordered_set<std::string> names;
    object([&](const std::string& name) {
      if (!names.insert(name).second) fail("the name " + in_quotes(name) + " comes twice");
      if (name == kMetadataKey) {
        metadata(header);
      } else {
        tensor_ = name;
        header.entries.push_back(entry(name));
        tensor_.clear();
      }
    });
    skip_blanks();
    if (at_ != text_.size()) fail("the header goes on after its end");
    return header;
  }

 private:
  void metadata(Header& header) {
    object([&](const std::string& key) {
      skip_blanks();
      const std::size_t start = at_ + 1;
      std::string value = string();
      if (!header.metadata.emplace(key, value).second) fail("the metadata key " + in_quotes(key) + " comes twice");
      if (key != kChecksumKey) return;
      if (value.size() != kChecksumDigits || at_ != start + kChecksumDigits + 1) fail("the checksum has not 8 digits");
      header.checksum_at = start;
    });
  }

  HeaderEntry entry(const std::string& name) {
    HeaderEntry e;
    e.name = name;
    if (const char* fault = name_fault(name)) fail(std::string("the name ") + fault);
    bool has_dtype = false, has_shape = false, has_offsets = false;
    const auto once = [&](bool& has, const std::string& key) {
      if (has) fail(key + " comes twice");
      has = true;
    };
    object([&](const std::string& key) {
      if (key == "dtype") {
        once(has_dtype, key);
        e.dtype = string();
      } else if (key == "shape") {
        once(has_shape, key);
        array([&] {
          if (e.shape.size() == kMaxDims) fail(fmt::format("more than {} dimensions", kMaxDims));
          const std::uint64_t size = number();
          if (size > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) fail("a size is 2^63 or more");
          e.shape.push_back(static_cast<std::int64_t>(size));
        });
      } else if (key == "data_offsets") {
        once(has_offsets, key);
        int n = 0;
        array([&] {
          const std::uint64_t offset = number();
          if (n < 2) (n == 0 ? e.begin : e.end) = offset;
          ++n;
        });
        if (n != 2) fail(fmt::format("{} data_offsets, 2 are wanted", n));
      } else {
        fail("unknown key " + in_quotes(key));
      }
    });
    if (!has_dtype || !has_shape || !has_offsets) fail("dtype, shape and data_offsets are wanted");
    return e;
  }

  template <class F>
  void object(F member) {
    expect('{');
    if (take('}')) return;
    do {
      skip_blanks();
      const std::string key = string();
      expect(':');
      member(key);
    } while (take(','));
    expect('}');
  }

  template <class F>
  void array(F element) {
    expect('[');
    if (take(']')) return;
    do {
      element();
    } while (take(','));
    expect(']');
  }

  std::string string() {
    std::string s;
    expect('"');
    for (;;) {
      if (at_ == text_.size()) fail("a string does not end");
      const char c = text_[at_++];
      if (c == '"') return s;
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
      if (c == '\\') {
        escape(s);
      } else {
        s += c;
      }
    }
  }

  void escape(std::string& s) {
    constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    if (const std::size_t i = kEscapes.find(c); i != kEscapes.npos) {
      s += kMeanings[i];
      return;
    }
    if (c != 'u') fail("a wrong escape in a string");
    std::uint32_t code = hex4();
    if (code >> 10 == 0xD800 >> 10 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      const std::uint32_t low = hex4();
      if (low >> 10 != 0xDC00 >> 10) fail("half a character in a string");
      code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
    }
    if (code >> 11 == 0xD800 >> 11) fail("half a character in a string");
    append_utf8(s, code);
  }

  std::uint32_t hex4() {
    const std::string_view digits = text_.substr(at_, 4);
    const char* end = digits.data() + digits.size();
    std::uint32_t value = 0;
    if (digits.size() < 4 || std::from_chars(digits.data(), end, value, 16).ptr != end) {
      fail("\\u wants 4 hexadecimal digits");
    }
    at_ += 4;
    return value;
  }

  static void append_utf8(std::string& s, std::uint32_t code) {
    const auto tail = [&](int shift) { s += static_cast<char>(0x80 | (code >> shift & 0x3f)); };
    if (code < 0x80) {
      s += static_cast<char>(code);
    } else if (code < 0x800) {
      s += static_cast<char>(0xC0 | code >> 6);
      tail(0);
    } else if (code < 0x10000) {
      s += static_cast<char>(0xE0 | code >> 12);
      tail(6), tail(0);
    } else {
      s += static_cast<char>(0xF0 | code >> 18);
      tail(12), tail(6), tail(0);
    }
  }

  /// A whole number from 0; signs, fractions and exponents are refused, as is a leading 0.
  std::uint64_t number() {
    skip_blanks();
    std::uint64_t value = 0;
    const char* first = text_.data() + at_;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) fail("a number is 2^64 or more");
    if (error != std::errc() || (*first == '0' && end != first + 1)) fail("a whole number of 0 or more is wanted");
    at_ += static_cast<std::size_t>(end - first);
    return value;
  }

  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool take(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(fmt::format("'{}' is wanted", c));
  }

  [[noreturn]] void fail(const std::string& what) const {
    const std::string where = tensor_.empty() ? "" : ", tensor " + in_quotes(tensor_);
    throw FormatError(fmt::format("{}{}, byte {} of the header: {}", file_, where, at_, what));
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0;
  std::string tensor_;  ///< being read
};

void append_string(std::string& out, std::string_view s) {
  out += '"';
  for (const char c : s) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
}

}  // namespace

Header parse_header(std::string_view text, const std::string& file) { return Reader(text, file).header(); }

std::string write_header(Header& header) {
  std::string out = "{";
  append_string(out, kMetadataKey);
  out += ":{";
  for (const auto& [key, value] : header.metadata) {
    if (out.back() != '{') out += ',';
    append_string(out, key);
    out += ':';
    if (key == kChecksumKey) header.checksum_at = out.size() + 1;
    append_string(out, value);
  }
  out += '}';
  for (const HeaderEntry& e : header.entries) {
    out += ',';
    append_string(out, e.name);
    out += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", e.dtype,
                       fmt::join(e.shape.begin(), e.shape.end(), ","), e.begin, e.end);
  }
  out += '}';
  out.resize((out.size() + 7) / 8 * 8, ' ');
  return out;
}

const char* name_fault(std::string_view name) {
  if (name.find('\0') != name.npos) return "contains NUL";
  if (name.find("../") != name.npos) return "contains \"../\"";
  return nullptr;
}

bool is_utf8(std::string_view text) {
  // The smallest code of each length; what is written longer than needed is not UTF-8.
  constexpr std::uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    const int tails = lead < 0x80 ? 0 : lead >> 5 == 6 ? 1 : lead >> 4 == 14 ? 2 : lead >> 3 == 30 ? 3 : -1;
    if (tails < 0 || text.size() - i < static_cast<std::size_t>(tails)) return false;
    std::uint32_t code = tails == 0 ? lead : lead & (0x3fU >> tails);
    for (int k = 0; k < tails; ++k, ++i) {
      const auto tail = static_cast<unsigned char>(text[i]);
      if (tail >> 6 != 2) return false;
      code = code << 6 | (tail & 0x3f);
    }
    if (code < kSmallest[tails] || code > 0x10FFFF || code >> 11 == 0xD800 >> 11) return false;
  }
  return true;
}

std::string in_quotes(std::string_view name) {
  std::size_t n = std::min<std::size_t>(name.size(), 100);
  while (n < name.size() && static_cast<unsigned char>(name[n]) >> 6 == 2) --n;  // do not cut a character in two
  std::string out = "\"";
  for (const char c : name.substr(0, n)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (n < name.size() ? "...\"" : "\"");
}

}  // namespace tandem::data
