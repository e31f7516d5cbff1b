#include "digits_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

using namespace tandem;

namespace {

/// Reads all of `text` as a number in [lo, hi], or says what was wanted, as CLI11's checks do: no error is an empty
/// text.
template <class T>
std::string read(const std::string& text, T lo, T hi, T& value) {
  T v{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error == std::errc() && end == text.data() + text.size() && v >= lo && v <= hi) {
    value = v;
    return {};
  }
  return fmt::format("got '{}', wanted {} from {} to {}", text, std::is_integral_v<T> ? "an integer" : "a number", lo,
                     hi);
}

/// A file that will be written: its folder must be there.
std::string writable(const std::string& text) {
  const std::filesystem::path folder = std::filesystem::absolute(text).parent_path();
  std::error_code ignored;
  if (!text.empty() && std::filesystem::is_directory(folder, ignored) && !std::filesystem::is_directory(text, ignored))
    return {};
  return fmt::format("got '{}', wanted a file name in a folder that exists", text);
}

std::string readable(const std::string& text, bool directory) {
  std::error_code ignored;
  if (directory ? std::filesystem::is_directory(text, ignored) : std::filesystem::is_regular_file(text, ignored))
    return {};
  return fmt::format("got '{}', wanted {} that exists", text, directory ? "a folder" : "a file");
}

}  // namespace

std::optional<int> parse(int argc, char** argv, DigitsOptions& o) {
  CLI::App app{"Trains a small CNN on the UCI optical digits: 5,620 images of 8x8 pixels."};
  std::string devices = "cpu:0,cpu:1";
  std::string epochs = std::to_string(o.epochs);
  std::string batch = std::to_string(o.batch);
  std::string lr = fmt::format("{}", o.lr);
  std::string seed = "0";
  std::string dtype = "float32";
  std::string data = TANDEM_DIGITS;
  std::string json;
  std::string trace;
  std::string save;
  std::string resume;

  const auto add = [&](const char* flag, std::string& text, const char* help, const char* type, auto check) {
    app.add_option(flag, text, help)
        ->type_name(type)
        ->capture_default_str()
        ->check([check](const std::string& s) -> std::string { return check(s); });
  };
  add("--devices", devices, "where to train; the first holds the model", "LIST",
      [&](const std::string& s) -> std::string {
        try {
          o.devices = parse_devices(s);
          return {};
        } catch (const Error& e) {
          return fmt::format("got '{}': {}", s, e.what());
        }
      });
  add("--epochs", epochs, "passes over the training images, 1 to 10000", "N",
      [&](const std::string& s) { return read<std::int64_t>(s, 1, 10000, o.epochs); });
  add("--batch", batch, "images per step, 1 to 3823", "N",
      [&](const std::string& s) { return read<std::int64_t>(s, 1, 3823, o.batch); });
  add("--lr", lr, "learning rate, 0 to 100", "X", [&](const std::string& s) { return read<double>(s, 0, 100, o.lr); });
  add("--seed", seed, "of weights and order, 0 to 2^64 - 1", "N",
      [&](const std::string& s) { return read<std::uint64_t>(s, 0, UINT64_MAX, o.seed); });
  add("--dtype", dtype, "float32 or float64", "TYPE", [&](const std::string& s) -> std::string {
    if (s != "float32" && s != "float64") return fmt::format("got '{}', wanted float32 or float64", s);
    o.dtype = s == "float32" ? kFloat32 : kFloat64;
    return {};
  });
  app.add_flag("--synchronous", o.synchronous, "an optimizer on every device, instead of sending parameters");
  add("--data", data, "folder with {train,test}-{images-idx3,labels-idx1}-ubyte.gz", "DIR",
      [](const std::string& s) { return readable(s, true); });
  add("--json", json, "write the metrics there", "FILE", writable);
  add("--trace", trace, "write the timeline there, in Chrome's trace format", "FILE", writable);
  add("--save", save, "write the weights, and all that --resume needs, there", "FILE", writable);
  add("--resume", resume, "go on from such a file, with the same other flags", "FILE",
      [](const std::string& s) { return readable(s, false); });

  o.devices = {cpu(0), cpu(1)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "digits: {}\n", e.what());
    return 2;
  }
  o.data = data;
  o.json = json;
  o.trace = trace;
  o.save = save;
  o.resume = resume;
  return std::nullopt;
}

void write_json(const std::filesystem::path& path, const Results& results, const parallel::Ledger& ledger) {
  nlohmann::json phases = nlohmann::json::array();
  for (const parallel::PhaseTotal& t : ledger.totals()) {
    phases.push_back({{"device", str(t.device)},
                      {"phase", parallel::name_of(t.phase)},
                      {"calls", t.calls},
                      {"bytes", t.bytes},
                      {"seconds", t.seconds}});
  }
  const nlohmann::json all = {{"loss", results.loss},
                              {"accuracy", results.accuracy},
                              {"images_per_s", results.images_per_s},
                              {"phases", phases}};
  data::write_file(path, all.dump() + "\n");
}
