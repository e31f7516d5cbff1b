// safetensors: what is saved comes back; what was damaged since, or half saved, does not.

#include "../../nn/safetensors.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "../../engine/error.h"
#include "../../engine/ops.h"
#include "../../nn/crc32.h"
#include "../catch.h"
#include "files.h"

using namespace tandem;
using namespace tandem::data;
using namespace std::string_literals;
using testing::content;
using testing::message;
using testing::TempDir;

namespace {

/// What is said of a file of these bytes.
std::string complaint(const std::string& bytes, bool require_checksum = false) {
  const LoadTensorsOptions options{.require_checksum = require_checksum};
  return message<FormatError>([&] { parse_tensors(std::as_bytes(std::span(bytes)), "a file", options); });
}

TensorFile sample() {
  TensorFile f;
  f.tensors.emplace_back("flags", from_vector<std::uint8_t>({1, 0, 1}, {3}).to(kBool));
  f.tensors.emplace_back("fc.weight", from_vector<float>({1.5F, -2, 3, 4, 5, 6}, {2, 3}));
  f.tensors.emplace_back("Grüße \"\\\n", from_vector<double>({0.1}, {}));
  f.tensors.emplace_back("steps", from_vector<std::int64_t>({std::int64_t{1} << 40}, {1}));
  f.tensors.emplace_back("bytes", from_vector<std::uint8_t>({255}, {1, 1}));
  f.tensors.emplace_back("none", empty({0, 7}));
  f.tensors.emplace_back("ints", from_vector<std::int32_t>({-1, 2}, {2}));
  f.metadata = {{"note", "a \"quoted\" text\n"}, {"x\"tandem.crc32", "00000000"}, {"epoch", "3"}};
  return f;
}

void check_same(const TensorFile& a, const TensorFile& b) {
  CHECK(a.metadata == b.metadata);
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const auto& [name, x] = a.tensors[i];
    const auto& [other_name, y] = b.tensors[i];
    CHECK(name == other_name);
    REQUIRE(x.dtype() == y.dtype());
    REQUIRE(x.sizes() == y.sizes());
    CHECK(x.to_vector<double>() == y.to_vector<double>());
  }
}

}  // namespace

TEST_CASE("CRC-32 is zlib's", "[safetensors]") {
  const std::string text = "123456789";
  const auto bytes = std::as_bytes(std::span(text));
  CHECK(crc32(bytes) == 0xCBF43926U);
  CHECK(crc32(bytes.subspan(4), crc32(bytes.first(4))) == 0xCBF43926U);
  CHECK(crc32({}) == 0);
}

TEST_CASE("saved tensors come back", "[safetensors]") {
  const TempDir dir;
  const auto path = dir / "a.safetensors";
  save_tensors(path, sample());
  check_same(load_tensors(path), sample());
  check_same(load_tensors(path, {.require_checksum = true}), sample());
  CHECK(dir.files() == 1);

  const std::string bytes = content(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(bytes[8] == '{');
  CHECK(length % 8 == 0);
  const std::string header = bytes.substr(8, length);
  CHECK_THAT(header, ContainsSubstring(R"("Grüße \"\\\u000a":{"dtype":"F64","shape":[],"data_offsets":[0,8]})"));
  CHECK_THAT(header, ContainsSubstring(R"("steps":{"dtype":"I64","shape":[1],"data_offsets":[8,16]})"));
  CHECK_THAT(header, ContainsSubstring(R"("fc.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[16,40]})"));
  double value = 0;
  std::memcpy(&value, bytes.data() + 8 + length, 8);
  CHECK(value == 0.1);

  save_tensors(path, {});
  CHECK(load_tensors(path, {.require_checksum = true}).tensors.empty());
}

TEST_CASE("tensors with any strides, on any device, can be saved", "[safetensors]") {
  const TempDir dir;
  const Tensor x = from_vector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  TensorFile f;
  f.tensors.emplace_back("t", x.t());
  f.tensors.emplace_back("row", x[1].expand({2, 3}));
  f.tensors.emplace_back("other", x.to(cpu(1)));
  Tensor parameter = x.clone();
  f.tensors.emplace_back("parameter", parameter.requires_grad_());
  save_tensors(dir / "a", f);
  const TensorFile back = load_tensors(dir / "a");
  CHECK(back.tensors[0].second.to_vector<double>() == std::vector<double>{1, 4, 2, 5, 3, 6});
  CHECK(back.tensors[1].second.to_vector<double>() == std::vector<double>{4, 5, 6, 4, 5, 6});
  CHECK(back.tensors[2].second.device() == cpu());
  CHECK_FALSE(back.tensors[3].second.requires_grad());
}

TEST_CASE("Python reads what is saved, and the other way round", "[safetensors]") {
  const std::string script = testing::check_safetensors();
  if (script.empty()) {
    WARN("skipped: there is no Python with numpy");
    return;
  }
  const TempDir dir;
  save_tensors(dir / "a", sample());
  const std::string command = script + "copy '" + (dir / "a").string() + "' '" + (dir / "b").string() + "'";
  REQUIRE(std::system(command.c_str()) == 0);
  CHECK(content(dir / "a") != content(dir / "b"));
  check_same(load_tensors(dir / "b"), sample());
}

TEST_CASE("what cannot be saved", "[safetensors]") {
  const TempDir dir;
  const auto path = dir / "a";
  const Tensor x = zeros({1});
  const auto said = [&](const TensorFile& f) { return message<ValueError>([&] { save_tensors(path, f); }); };
  CHECK_THAT(said({{{"a", x}, {"a", x}}, {}}), ContainsSubstring("\"a\" is taken"));
  CHECK_THAT(said({{{"__metadata__", x}}, {}}), ContainsSubstring("is taken"));
  CHECK_THAT(said({{{"a", Tensor()}}, {}}), ContainsSubstring("\"a\" is undefined"));
  CHECK_THAT(said({{{"a\0b"s, x}}, {}}), ContainsSubstring("NUL"));
  CHECK_THAT(said({{{"../a", x}}, {}}), ContainsSubstring("../"));
  CHECK_THAT(said({{{"\xff", x}}, {}}), ContainsSubstring("UTF-8"));
  CHECK_THAT(said({{}, {{"k", "\xff"}}}), ContainsSubstring("\"k\" is not UTF-8"));
  CHECK_THAT(said({{}, {{"tandem.crc32", ""}}}), ContainsSubstring("is taken"));
  CHECK_THROWS_AS(save_tensors(dir / "no" / "a", sample()), IoError);
  CHECK(dir.files() == 0);
  CHECK_THROWS_AS(load_tensors(path), IoError);
}

TEST_CASE("no truncation and no flipped bit goes unnoticed", "[safetensors]") {
  const TempDir dir;
  const auto path = dir / "checkpoint";
  TensorFile f = sample();
  f.tensors.resize(3);
  save_tensors(path, f);
  const std::string bytes = content(path);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    INFO("truncated to " << n);
    CHECK_THAT(complaint(bytes.substr(0, n)), ContainsSubstring("a file"));
  }
  CHECK_THAT(complaint(bytes + '\0'), ContainsSubstring("a file: is damaged: its checksum"));
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    INFO("bit " << bit);
    CHECK_THAT(complaint(damaged, true), ContainsSubstring("a file"));
  }
}

TEST_CASE("when space runs out while saving, the old checkpoint stays", "[safetensors]") {
  const TempDir dir;
  const auto path = dir / "checkpoint";
  save_tensors(path, sample());
  TensorFile large;
  large.tensors.emplace_back("x", zeros({10000}));
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20000, 20000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int result = 1;
    try {
      save_tensors(path, large);
    } catch (const IoError&) {
      result = 0;
    } catch (...) {
    }
    ::_exit(result);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(dir.files() == 1);
  check_same(load_tensors(path, {.require_checksum = true}), sample());
}

TEST_CASE("a process killed while saving leaves a whole checkpoint", "[safetensors]") {
  const TempDir dir;
  const auto path = dir / "checkpoint";
  TensorFile versions[2];
  for (int v = 0; v < 2; ++v) versions[v].tensors.emplace_back("x", full({20000 + v}, v));
  save_tensors(path, versions[0]);
  for (int round = 0; round < 25; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      [&]() noexcept {
        for (int i = 1;; i = 1 - i) save_tensors(path, versions[i]);
      }();
    }
    const timespec pause{0, 300000 + round * 211000};
    ::nanosleep(&pause, nullptr);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const Tensor x = load_tensors(path, {.require_checksum = true}).tensors.at(0).second;
    const double v = x[0].item();
    REQUIRE(x.numel() == 20000 + static_cast<std::int64_t>(v));
  }
}
