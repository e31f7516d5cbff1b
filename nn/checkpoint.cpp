#include "checkpoint.h"

#include <fmt/format.h>

#include <charconv>

#include "../engine/error.h"
#include "../engine/ops.h"
#include "../engine/random.h"
#include "../engine/runtime.h"
#include "safetensors.h"

namespace tandem::nn {
namespace {

constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kRandom = "random.";

/// Reads the metadata of one file; every failure names file and entry.
class Metadata {
 public:
  Metadata(const std::filesystem::path& path, const std::map<std::string, std::string>& entries)
      : path_(path), entries_(entries) {}

  const std::string& text(const std::string& key) const {
    const auto found = entries_.find(key);
    if (found == entries_.end()) {
      throw FormatError(fmt::format("{}: no checkpoint: its metadata lacks '{}'", path_.string(), key));
    }
    return found->second;
  }
  template <class T>
  T number(const std::string& key) const {
    const std::string& s = text(key);
    T value{};
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
    if (error != std::errc() || end != s.data() + s.size()) {
      throw FormatError(fmt::format("{}: the metadata's '{}' is '{}', not a number", path_.string(), key, s));
    }
    return value;
  }

 private:
  const std::filesystem::path& path_;
  const std::map<std::string, std::string>& entries_;
};

StateDict copied(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, t] : state) copy.emplace_back(name, t.clone());
  return copy;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Module& module, const optim::Optimizer& optimizer,
                     const data::DataLoader& loader, std::int64_t step) {
  data::TensorFile file;
  file.tensors = module.state_dict();
  const optim::OptimizerState state = optimizer.state();
  for (const auto& [name, t] : state.tensors) file.tensors.emplace_back(std::string(kOptimizer) + name, t);
  auto& m = file.metadata;
  m["format"] = "tandem checkpoint 1";
  m["step"] = std::to_string(step);
  m["optimizer"] = state.type;
  // The shortest text that reads back as the same number.
  for (const auto& [name, value] : state.numbers) m[std::string(kOptimizer) + name] = fmt::format("{}", value);
  m["loader.epoch"] = std::to_string(loader.state().epoch);
  m["loader.next_batch"] = std::to_string(loader.state().next_batch);
  for (Device device : used_devices()) {
    const GeneratorState g = generator_state(device);
    m[std::string(kRandom) + str(device) + ".seed"] = std::to_string(g.seed);
    m[std::string(kRandom) + str(device) + ".offset"] = std::to_string(g.offset);
  }
  data::save_tensors(path, file);
}

std::int64_t load_checkpoint(const std::filesystem::path& path, Module& module, optim::Optimizer& optimizer,
                             data::DataLoader& loader) {
  const data::TensorFile file = data::load_tensors(path, {.require_checksum = true});
  const Metadata m(path, file.metadata);
  if (m.text("format") != "tandem checkpoint 1") {
    throw FormatError(
        fmt::format("{}: wanted the format 'tandem checkpoint 1', got '{}'", path.string(), m.text("format")));
  }
  StateDict weights;
  optim::OptimizerState state;
  state.type = m.text("optimizer");
  for (const auto& [name, t] : file.tensors) {
    if (name.starts_with(kOptimizer)) {
      state.tensors.emplace_back(name.substr(kOptimizer.size()), t);
    } else {
      weights.emplace_back(name, t);
    }
  }
  // In the order of the optimizer that is there: load_state reports what is missing or too much.
  for (const auto& [key, value] : file.metadata) {
    if (key.starts_with(kOptimizer)) state.numbers.emplace_back(key.substr(kOptimizer.size()), m.number<double>(key));
  }
  const std::int64_t step = m.number<std::int64_t>("step");
  const data::LoaderState position{m.number<std::int64_t>("loader.epoch"), m.number<std::int64_t>("loader.next_batch")};
  std::vector<std::pair<Device, GeneratorState>> random;
  for (Device device : all_devices()) {
    const std::string key = std::string(kRandom) + str(device);
    if (!file.metadata.contains(key + ".seed")) continue;
    random.push_back({device, {m.number<std::uint64_t>(key + ".seed"), m.number<std::uint64_t>(key + ".offset")}});
  }

  const StateDict old_weights = copied(module.state_dict());
  optim::OptimizerState old_state = optimizer.state();
  old_state.tensors = copied(old_state.tensors);
  module.load_state_dict(weights);
  try {
    optimizer.load_state(state);
    loader.restore(position);
  } catch (...) {
    module.load_state_dict(old_weights);
    optimizer.load_state(old_state);
    throw;
  }
  for (const auto& [device, g] : random) set_generator_state(device, g);
  return step;
}

}  // namespace tandem::nn
