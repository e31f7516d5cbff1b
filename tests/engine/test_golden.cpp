// Values and gradients of every op sample, compared with PyTorch's; see tests/golden/make.py.

#include <map>

#include "../../nn/safetensors.h"
#include "helpers.h"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("golden: ops and their gradients are PyTorch's to 1e-9") {
  const data::TensorFile file = data::load_tensors(TANDEM_GOLDEN_DIR "/ops.safetensors");
  const std::map<std::string, Tensor> golden(file.tensors.begin(), file.tensors.end());
  const auto find = [&](const std::string& name) {
    const auto found = golden.find(name);
    return found == golden.end() ? Tensor() : found->second;
  };

  std::size_t compared = 0;
  for (const OpRecord& record : op_records()) {
    const std::vector<OpSample> samples = record.samples();
    for (std::size_t s = 0; s < samples.size(); ++s) {
      const OpSample& sample = samples[s];
      if (sample.python.empty()) continue;
      const std::string name = std::string(record.name) + "/" + std::to_string(s);
      INFO(name << ": " << sample.python);
      // A sample that has changed wants a new file.
      const auto expression = file.metadata.find(name);
      REQUIRE(expression != file.metadata.end());
      REQUIRE(expression->second == sample.python);
      for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
        REQUIRE(same_bits(find(name + "/x" + std::to_string(i)), sample.inputs[i]));
      }

      const Evaluation e = evaluate(sample, leaves(sample.inputs));
      CHECK_FALSE(find(name + "/out" + std::to_string(e.outputs.size())).defined());
      for (std::size_t i = 0; i < e.outputs.size(); ++i) {
        const Tensor wanted = find(name + "/out" + std::to_string(i));
        INFO("output " << i << "\n" << text(e.outputs[i]) << "\n" << text(wanted));
        CHECK(e.outputs[i].dtype() == wanted.dtype());
        CHECK(close(e.outputs[i], wanted, 1e-9, 1e-9));
      }
      for (std::size_t i = 0; i < e.gradients.size(); ++i) {
        const Tensor wanted = find(name + "/grad" + std::to_string(i));
        INFO("gradient " << i << "\n" << text(e.gradients[i]) << "\n" << text(wanted));
        CHECK(close(e.gradients[i], wanted, 1e-9, 1e-9));
      }
      ++compared;
    }
  }
  CHECK(compared == file.metadata.size());
}
