// Files that others may have written: what the format allows is read, all else is refused.

#include <cmath>
#include <cstring>
#include <limits>

#include "../../engine/error.h"
#include "../../engine/ops.h"
#include "../../nn/safetensors.h"
#include "../catch.h"
#include "files.h"

using namespace tandem;
using namespace tandem::data;
using namespace std::string_literals;
using testing::message;

namespace {

TensorFile parse(const std::string& bytes, bool require_checksum = false) {
  return parse_tensors(std::as_bytes(std::span(bytes)), "a file", {.require_checksum = require_checksum});
}
std::string complaint(const std::string& bytes, bool require_checksum = false) {
  return message<FormatError>([&] { parse(bytes, require_checksum); });
}

/// A file of this header, and `n` bytes of data.
std::string file(const std::string& header, std::size_t n = 0) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(n, '\0');
}
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}
/// What is said of a file with one tensor "a".
std::string complaint_of(const std::string& dtype, const std::string& shape, const std::string& offsets,
                         std::size_t n) {
  return complaint(file("{\"a\":" + entry(dtype, shape, offsets) + "}", n));
}

}  // namespace

TEST_CASE("safetensors of others: values", "[safetensors]") {
  const auto floats = [](const std::string& dtype, const std::string& data) {
    const std::string n = std::to_string(data.size());
    const std::string count = std::to_string(data.size() / 2);
    const TensorFile f = parse(file("{\"a\":" + entry(dtype, "[" + count + "]", "[0," + n + "]") + "}") + data);
    CHECK(f.tensors.at(0).second.dtype() == kFloat32);
    return f.tensors.at(0).second.to_vector<double>();
  };
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(floats("F16", "\x00\x3c\x00\xc0\xff\x7b\x01\x00\x00\x04\x00\x7c\x00\xfc"s) ==
        std::vector<double>{1, -2, 65504, 0x1p-24, 0x1p-14, inf, -inf});
  CHECK(floats("BF16", "\x80\x3f\x20\xc0\x80\xff"s) == std::vector<double>{1, -2.5, -inf});
  CHECK(std::isnan(floats("F16", "\x01\x7e"s)[0]));

  const TensorFile f = parse(file(R"({ "é😀" : {"data_offsets" : [ 0 , 1 ],
      "shape":[], "dtype":"U8"} , "\/\b\u00e9\ud83d\ude00":{"dtype":"F32","shape":[1,0,3],"data_offsets":[1,1]} } )",
                                  1));
  REQUIRE(f.tensors.size() == 2);
  CHECK(f.tensors[0].first == "é😀");
  CHECK(f.tensors[1].first == "/\bé😀");
  CHECK(f.tensors[1].second.sizes() == Shape{1, 0, 3});
  CHECK(parse(file("{}")).tensors.empty());
  CHECK(parse(file(R"({"__metadata__":{}})")).metadata.empty());
}

TEST_CASE("safetensors of others: the length", "[safetensors]") {
  for (std::size_t n = 0; n < 8; ++n) CHECK_THAT(complaint(std::string(n, '\2')), ContainsSubstring("too few"));
  CHECK_THAT(complaint(std::string(7, '\0') + "\x80{}"), ContainsSubstring("9223372036854775808 bytes, at most"));
  CHECK_THAT(complaint(std::string(8, '\xff') + "{}"), ContainsSubstring("at most 100000000"));
  CHECK_THAT(complaint("\3"s + std::string(7, '\0') + "{}"), ContainsSubstring("3 bytes, but has 10 bytes in all"));
  CHECK_THAT(complaint(std::string(8, '\0')), ContainsSubstring("'{'"));
  CHECK_THAT(complaint(file("{}", 1)), ContainsSubstring("tensors take 0 bytes, but there are 1"));
  CHECK_THAT(complaint(file("{}"), true), ContainsSubstring("no checksum"));
}

TEST_CASE("safetensors of others: what is no JSON", "[safetensors]") {
  const std::string a = R"({"a":)" + entry("U8", "[0]", "[0,0]");
  const char* const headers[] = {"[]",           " {}",        "{",     "{\"a\"",  "{\"a\":", "{\"a\":1}",
                                 "{\"a\":null}", "{\"a\":[]}", "{a:1}", "{'a':1}", "{,}",     "{}{}",
                                 "{}x",          "null",       "\"\"",  "{\"",     "{\"\\",   "{\"\\u"};
  for (const std::string header : headers) {
    INFO(header);
    CHECK_THAT(complaint(file(header)), ContainsSubstring("a file, "));
  }
  for (const std::string& tail : {""s, ","s, ",}"s, "}}"s, "} x"s, ";}"s}) {
    INFO(tail);
    CHECK_THAT(complaint(file(a + tail)), ContainsSubstring("a file, "));
  }
  for (const char* name : {"\\x", "\\u12", "\\u12g4", "\\ud800", "\\ud800\\u0041", "\\ud800\\ud800", "\\udc00", "\n"}) {
    INFO(name);
    CHECK_THAT(complaint(file("{\""s + name + "\":" + entry("U8", "[0]", "[0,0]") + "}")),
               ContainsSubstring("a file, "));
  }
  CHECK(complaint(file(a + "}")).empty());
  for (const char* bad :
       {"\xff", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8", "\x80", "\xc3"}) {
    CHECK_THAT(complaint(file("{\"" + std::string(bad) + "\":" + entry("U8", "[0]", "[0,0]") + "}")),
               ContainsSubstring("not UTF-8"));
  }
  for (const char* open : {"[", "{\"a\":", "{\"a\":{\"shape\":["}) {
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += open;
    CHECK_FALSE(complaint(file(deep)).empty());
    CHECK_FALSE(complaint(file("{\"a\":" + deep)).empty());
    CHECK_FALSE(complaint(file("{\"a\":{\"shape\":" + deep)).empty());
  }
}

TEST_CASE("safetensors of others: entries", "[safetensors]") {
  const std::string ok = entry("U8", "[1]", "[0,1]");
  const auto said = [&](const std::string& members) { return complaint(file("{" + members + "}", 1)); };
  CHECK(said("\"a\":" + ok).empty());
  CHECK_THAT(said("\"a\":" + ok + ",\"a\":" + ok), ContainsSubstring("\"a\" comes twice"));
  CHECK_THAT(said("\"a\":" + ok + ",\"\\u0061\":" + ok), ContainsSubstring("\"a\" comes twice"));
  CHECK_THAT(said("\"a\\u0000b\":" + ok), ContainsSubstring("\"a?b\"") && ContainsSubstring("NUL"));
  CHECK_THAT(said("\"../../etc/passwd\":" + ok), ContainsSubstring("../"));
  for (const char* metadata : {"1", "null", "[]", "{\"a\":1}", "{\"a\":null}", "{\"a\":{}}",
                               "{\"a\":\"1\",\"a\":\"2\"}", "{\"tandem.crc32\":\"\"}"}) {
    INFO(metadata);
    CHECK_FALSE(said("\"__metadata__\":"s + metadata + ",\"a\":" + ok).empty());
  }
  CHECK_THAT(said("\"__metadata__\":{},\"__metadata__\":{},\"a\":" + ok), ContainsSubstring("comes twice"));
  CHECK_THAT(said(R"("__metadata__":{"tandem.crc32":"\u00300000000"},"a":)" + ok),
             ContainsSubstring("has not 8 digits"));
  CHECK_THAT(said("\"__metadata__\":{\"tandem.crc32\":\"00000000\"},\"a\":" + ok), ContainsSubstring("checksum"));

  CHECK_THAT(said(R"("a":{"dtype":"U8","shape":[1]})"), ContainsSubstring("\"a\"") && ContainsSubstring("wanted"));
  CHECK_THAT(said(R"("a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})"),
             ContainsSubstring("dtype comes twice"));
  CHECK_THAT(said(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1})"),
             ContainsSubstring("unknown key \"x\""));
  CHECK_THAT(said(R"("a":{"dtype":1,"shape":[1],"data_offsets":[0,1]})"), ContainsSubstring("\"a\""));
  CHECK_THAT(complaint_of("F8_E4M3", "[1]", "[0,1]", 1), ContainsSubstring("tensor \"a\": dtype \"F8_E4M3\""));
  CHECK_THAT(complaint_of("", "[1]", "[0,1]", 1), ContainsSubstring("dtype"));
  CHECK_THAT(complaint(file("{\"a\":" + entry("BOOL", "[1]", "[0,1]") + "}") + "\2"),
             ContainsSubstring("tensor \"a\""));
}

TEST_CASE("safetensors of others: shapes and offsets", "[safetensors]") {
  for (const char* number :
       {"-1", "1.0", "1e0", "01", "+1", "\"1\"", "", "null", "0x1", "18446744073709551616", "true"}) {
    INFO(number);
    const std::string n = number;
    CHECK_THAT(complaint_of("U8", "[" + n + ",1]", "[0,1]", 1), ContainsSubstring("\"a\""));
    CHECK_THAT(complaint_of("U8", "[1]", "[0," + n + "]", 1), ContainsSubstring("\"a\""));
  }
  CHECK_THAT(complaint_of("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]", 1), ContainsSubstring("more than 8 dimensions"));
  CHECK_THAT(complaint_of("U8", "[9223372036854775808]", "[0,1]", 1), ContainsSubstring("2^63"));
  // 2^64 + 4 elements, if the product wraps.
  CHECK_THAT(complaint_of("F32", "[4194305,4194305,211106198978564]", "[0,16]", 16), ContainsSubstring("2^63 bytes"));
  CHECK_THAT(complaint_of("F32", "[0,9223372036854775807,4]", "[0,0]", 0), ContainsSubstring("2^63 bytes"));
  CHECK_THAT(complaint_of("F32", "[1000,1000]", "[0,4]", 4),
             ContainsSubstring("takes 4000000 bytes, but bytes 0 to 4 are 4"));
  CHECK_THAT(complaint_of("F32", "[1000,1000]", "[0,4000000]", 4),
             ContainsSubstring("end at 4000000, but there are 4"));
  CHECK_THAT(complaint_of("F32", "[1]", "[4,0]", 4), ContainsSubstring("backwards"));
  CHECK_THAT(complaint_of("F32", "[1]", "[4,8]", 8), ContainsSubstring("start at 4, but those before it end at 0"));
  CHECK_THAT(complaint_of("F32", "[1]", "[0,4]", 5), ContainsSubstring("tensors take 4 bytes, but there are 5"));
  CHECK_THAT(complaint_of("F32", "[1]", "[18446744073709551612,18446744073709551615]", 4), ContainsSubstring("\"a\""));
  CHECK_THAT(complaint_of("F32", "[1]", "[0]", 4), ContainsSubstring("1 data_offsets"));
  CHECK_THAT(complaint_of("F32", "[1]", "[0,4,8]", 4), ContainsSubstring("3 data_offsets"));

  const auto two = [](const std::string& a, const std::string& b) {
    return complaint(file("{\"a\":" + entry("U8", "[2]", a) + ",\"b\":" + entry("U8", "[2]", b) + "}", 4));
  };
  CHECK(two("[0,2]", "[2,4]").empty());
  CHECK(two("[2,4]", "[0,2]").empty());
  CHECK_THAT(two("[0,2]", "[1,3]"), ContainsSubstring("tensor \"b\"") && ContainsSubstring("start at 1"));
  CHECK_THAT(two("[0,2]", "[0,2]"), ContainsSubstring("start at 0"));
  CHECK_THAT(two("[3,5]", "[0,2]"), ContainsSubstring("tensor \"a\"") && ContainsSubstring("start at 3"));
}

TEST_CASE("a header with a million entries", "[safetensors]") {
  std::string header = "{";
  for (int i = 0; i < 1000000; ++i) header += (i ? ",\"" : "\"") + std::to_string(i) + "\":{\"shape\":[]}";
  CHECK_THAT(complaint(file(header + "}")), ContainsSubstring("\"0\""));
  header = "{\"__metadata__\":{";
  for (int i = 0; i < 1000000; ++i) header += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
  CHECK(parse(file(header + "}}")).metadata.size() == 1000000);
}
