#pragma once
// The command line of the digits example, and the metrics that it writes.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <tandem/tandem.h>

struct DigitsOptions {
  std::vector<tandem::Device> devices;
  std::int64_t epochs = 12;
  std::int64_t batch = 32;
  double lr = 0.05;
  std::uint64_t seed = 0;
  tandem::DType dtype = tandem::kFloat32;
  bool synchronous = false;
  std::filesystem::path data, json, trace, save, resume;
};

/// Fills `options`; or gives the exit code: 0 after --help, 2 for a bad command line, told in one line on stderr.
std::optional<int> parse(int argc, char** argv, DigitsOptions& options);

struct Results {
  std::vector<double> loss;      ///< per step
  std::vector<double> accuracy;  ///< per epoch, on the test part
  double images_per_s = 0;
};
void write_json(const std::filesystem::path& path, const Results& results, const tandem::parallel::Ledger& ledger);
