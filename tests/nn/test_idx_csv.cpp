// IDX, gzip and CSV: values, and every kind of damage.

#include "../../engine/error.h"
#include "../../engine/ops.h"
#include "../../nn/csv.h"
#include "../../nn/idx.h"
#include "../catch.h"
#include "files.h"

using namespace tandem;
using namespace tandem::data;
using namespace std::string_literals;
using testing::message;
using testing::put;
using testing::TempDir;

namespace {

using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;

const std::string kIdx = "\0\0\x08\x02\0\0\0\x02\0\0\0\x03\x01\x02\x03\x04\x05\x06"s;
// kIdx by gzip.
const std::string kGzip =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60\x62\x60\x60\x00\x61\x66\x46\x26\x66\x16\x56\x36\x00\x48"
    "\x94\x3e\xe5\x12\x00\x00\x00"s;

Tensor parse(const std::string& bytes) {
  return read_idx(std::make_unique<MemorySource>(std::as_bytes(std::span(bytes))), "a file");
}
std::string complaint(const std::string& bytes) {
  return message<FormatError>([&] { parse(bytes); });
}
bool has_zlib() {
  return message<IoError>([] { parse(kGzip); }).empty();
}

}  // namespace

TEST_CASE("IDX values of every type", "[idx]") {
  const Tensor t = parse(kIdx);
  CHECK(t.dtype() == kUInt8);
  CHECK(t.sizes() == Shape{2, 3});
  CHECK(t.to_vector<std::int64_t>() == Ints{1, 2, 3, 4, 5, 6});

  const Tensor i8 = parse("\0\0\x09\x01\0\0\0\x03\xff\x80\x7f"s);
  CHECK(i8.dtype() == kInt32);
  CHECK(i8.to_vector<std::int64_t>() == Ints{-1, -128, 127});
  const Tensor i16 = parse("\0\0\x0b\x01\0\0\0\x02\xff\xfe\x01\x02"s);
  CHECK(i16.dtype() == kInt32);
  CHECK(i16.to_vector<std::int64_t>() == Ints{-2, 258});
  const Tensor i32 = parse("\0\0\x0c\x01\0\0\0\x02\xff\xff\xff\xfe\x01\x02\x03\x04"s);
  CHECK(i32.dtype() == kInt32);
  CHECK(i32.to_vector<std::int64_t>() == Ints{-2, 0x01020304});
  const Tensor f32 = parse("\0\0\x0d\x01\0\0\0\x01\xc0\x20\0\0"s);
  CHECK(f32.dtype() == kFloat32);
  CHECK(f32.to_vector<double>() == Doubles{-2.5});
  const Tensor f64 = parse("\0\0\x0e\x02\0\0\0\x01\0\0\0\x01\x3f\xb9\x99\x99\x99\x99\x99\x9a"s);
  CHECK(f64.dtype() == kFloat64);
  CHECK(f64.to_vector<double>() == Doubles{0.1});
  CHECK(parse("\0\0\x08\x02\0\0\0\0\0\0\0\x05"s).sizes() == Shape{0, 5});
}

TEST_CASE("IDX files that are damaged", "[idx]") {
  for (std::size_t n = 0; n < kIdx.size(); ++n) {
    INFO("truncated to " << n);
    CHECK_THAT(complaint(kIdx.substr(0, n)), ContainsSubstring("a file"));
  }
  CHECK_THAT(complaint(kIdx + "x"), ContainsSubstring("(2, 3), 6 bytes of data, but has more"));
  CHECK_THAT(complaint(kIdx.substr(0, 17)), ContainsSubstring("(2, 3), 6 bytes of data, but has 5"));
  CHECK_THAT(complaint("\x89PNG\r\n"s), ContainsSubstring("0x89504e47"));
  CHECK_THAT(complaint("\0\0\x0a\x01\0\0\0\x01x"s), ContainsSubstring("0x00000a01"));
  CHECK_THAT(complaint("\0\x01\x08\x01\0\0\0\x01x"s), ContainsSubstring("0x00010801"));
  CHECK_THAT(complaint("\0\0\x08\0x"s), ContainsSubstring("0 dimensions"));
  CHECK_THAT(complaint("\0\0\x08\x09"s + std::string(37, '\0')), ContainsSubstring("9 dimensions"));
  const std::string huge = "\xff\xff\xff\xff"s;
  CHECK_THAT(complaint("\0\0\x08\x01"s + huge + "x"), ContainsSubstring("4294967295 bytes of data, but has 1"));
  CHECK_THAT(complaint("\0\0\x08\x03"s + huge + huge + huge + "x"), ContainsSubstring("more than 2^63"));
  CHECK_THAT(complaint("\0\0\x08\x03\0\0\0\0"s + huge + huge), ContainsSubstring("more than 2^63"));
}

TEST_CASE("IDX files by gzip", "[idx][gzip]") {
  if (!has_zlib()) {
    CHECK_THAT(message<IoError>([] { parse(kGzip); }), ContainsSubstring("a file") && ContainsSubstring("zlib"));
    return;
  }
  CHECK(parse(kGzip).to_vector<std::int64_t>() == Ints{1, 2, 3, 4, 5, 6});
  for (std::size_t n = 0; n < kGzip.size(); ++n) {
    INFO("truncated to " << n);
    CHECK_THAT(complaint(kGzip.substr(0, n)), ContainsSubstring("a file"));
  }
  for (const char* tail : {"x", "\x1f", "\x1f\x8b", "garbage behind the end"}) {
    CHECK_THAT(complaint(kGzip + tail), ContainsSubstring("a file: "));
  }
  CHECK_THAT(complaint(kGzip + kGzip), ContainsSubstring("but has more"));
  // Every bit of the deflate stream, its checksum and its length. (Those of the gzip header hold no data.)
  for (std::size_t bit = 8 * 10; bit < 8 * kGzip.size(); ++bit) {
    std::string damaged = kGzip;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    INFO("bit " << bit);
    std::string said = complaint(damaged);
    // One bit chooses among names of the same codes, so that the same bytes come out.
    if (said.empty()) CHECK(parse(damaged).to_vector<std::int64_t>() == Ints{1, 2, 3, 4, 5, 6});
  }
}

TEST_CASE("IDX is written as it is read", "[idx]") {
  const TempDir dir;
  const Tensor u8 = parse(kIdx);
  write_idx(dir / "u8", u8);
  CHECK(testing::content(dir / "u8") == kIdx);
  for (DType dtype : {kInt32, kFloat32, kFloat64}) {
    const Tensor t = u8.to(dtype).t();
    write_idx(dir / "t", t);
    const Tensor back = read_idx(dir / "t");
    CHECK(back.dtype() == dtype);
    CHECK(back.sizes() == Shape{3, 2});
    CHECK(back.to_vector<double>() == Doubles{1, 4, 2, 5, 3, 6});
  }
  CHECK_THROWS_AS(write_idx(dir / "new", u8.to(kInt64)), DTypeError);
  CHECK_THROWS_AS(write_idx(dir / "new", u8[0][0]), ShapeError);
  CHECK_THROWS_AS(write_idx(dir / "new", Tensor()), ValueError);
  CHECK_THROWS_AS(write_idx(dir / "no" / "t", u8), IoError);
  CHECK(dir.files() == 2);
  CHECK_THAT(message<IoError>([&] { read_idx(dir / "none"); }), ContainsSubstring("none: No such file"));
  CHECK_THAT(message<IoError>([&] { read_idx(dir.path()); }), ContainsSubstring("directory"));
}

TEST_CASE("inputs and labels", "[idx]") {
  const TempDir dir;
  const auto images = put(dir / "images", kIdx);
  const auto labels = put(dir / "labels", "\0\0\x08\x01\0\0\0\x02\x09\x00"s);
  const Labelled pair = load_idx_pair(images, labels);
  CHECK(pair.inputs.sizes() == Shape{2, 3});
  CHECK(pair.labels.dtype() == kInt64);
  CHECK(pair.labels.to_vector<std::int64_t>() == Ints{9, 0});

  const auto said = [&](const std::string& bytes, std::int64_t classes = 10) {
    put(labels, bytes);
    return message<FormatError>([&] { load_idx_pair(images, labels, classes); });
  };
  CHECK_THAT(said("\0\0\x08\x01\0\0\0\x02\x09\x00"s, 9), ContainsSubstring("labels: label 0 is 9; classes are 0 to 8"));
  CHECK_THAT(said("\0\0\x09\x01\0\0\0\x02\x01\xff"s), ContainsSubstring("label 1 is -1"));
  CHECK_THAT(said("\0\0\x08\x01\0\0\0\x03\x00\x00\x00"s),
             ContainsSubstring("3 labels") && ContainsSubstring("2 inputs"));
  CHECK_THAT(said(kIdx), ContainsSubstring("list of integers"));
  CHECK_THAT(said("\0\0\x0d\x01\0\0\0\x00"s), ContainsSubstring("list of integers"));
}

TEST_CASE("CSV values", "[csv]") {
  const TempDir dir;
  const auto path = dir / "t.csv";
  const auto read = [&](const std::string& text, const CsvOptions& options = {}) {
    return read_csv(put(path, text), options);
  };
  const Tensor t = read("1, 2.5,-3e2\r\n 4,+5 ,nan\n");
  CHECK(t.dtype() == kFloat32);
  CHECK(t.sizes() == Shape{2, 3});
  const Doubles v = t.to_vector<double>();
  CHECK(Doubles(v.begin(), v.end() - 1) == Doubles{1, 2.5, -300, 4, 5});
  CHECK(v[5] != v[5]);
  CHECK(read("0.1", {.dtype = kFloat64}).to_vector<double>() == Doubles{0.1});
  CHECK(read("a,b\n\xff\n1;2\n\n3;4\n\n", {.delimiter = ';', .skip_lines = 2}).to_vector<double>() ==
        Doubles{1, 2, 3, 4});
  CHECK(read("1\t2\n3\t4", {.delimiter = '\t', .dtype = kInt64}).to_vector<std::int64_t>() == Ints{1, 2, 3, 4});
  CHECK(read("\xef\xbb\xbf"
             "7")
            .to_vector<double>() == Doubles{7});
  CHECK(read("255\n0", {.dtype = kUInt8}).sizes() == Shape{2, 1});
}

TEST_CASE("CSV files that are damaged", "[csv]") {
  const TempDir dir;
  const auto path = dir / "t.csv";
  const auto said = [&](const std::string& text, const CsvOptions& options = {}) {
    put(path, text);
    return message<FormatError>([&] { read_csv(path, options); });
  };
  CHECK_THAT(said("1,2\n3,x\n"), ContainsSubstring("t.csv: line 2, column 2: \"x\" is no float32"));
  CHECK_THAT(said("1,2\n3\n"), ContainsSubstring("line 2, column 1: the row ends, but the first has 2"));
  CHECK_THAT(said("1,2\n3,4,5\n"), ContainsSubstring("line 2, column 3"));
  CHECK_THAT(said("1,,2"), ContainsSubstring("line 1, column 2: \"\""));
  CHECK_THAT(said("1,2,"), ContainsSubstring("line 1, column 3"));
  CHECK_THAT(said("1.5", {.dtype = kInt32}), ContainsSubstring("is no int32"));
  CHECK_THAT(said("256", {.dtype = kUInt8}), ContainsSubstring("is no uint8"));
  CHECK_THAT(said("1e999"), ContainsSubstring("is no float32"));
  CHECK_THAT(said("1,5", {.delimiter = ';'}), ContainsSubstring("\"1,5\""));
  CHECK_THAT(said("+-1"), ContainsSubstring("\"+-1\""));
  CHECK_THAT(said("\"1\""), ContainsSubstring("column 1"));
  CHECK_THAT(said(""), ContainsSubstring("no rows"));
  CHECK_THAT(said("\n\r\n"), ContainsSubstring("no rows"));
  CHECK_THAT(said("head\n", {.skip_lines = 5}), ContainsSubstring("no rows"));
  CHECK_THROWS_AS(read_csv(dir / "none"), IoError);
  CHECK_THROWS_AS(read_csv(path, {.skip_lines = -1}), ValueError);
  CHECK_THROWS_AS(read_csv(path, {.delimiter = '\n'}), ValueError);
  CHECK_THROWS_AS(read_csv(path, {.dtype = kBool}), ValueError);
}
