// Writes the op records' samples for make.py: their inputs, and in the metadata their Python expressions.

#include <cstdio>

#include "../../engine/op_record.h"
#include "../../nn/safetensors.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: dump-samples FILE\n", stderr);
    return 2;
  }
  tandem::data::TensorFile file;
  for (const tandem::OpRecord& record : tandem::op_records()) {
    const std::vector<tandem::OpSample> samples = record.samples();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].python.empty()) continue;
      const std::string name = std::string(record.name) + "/" + std::to_string(i);
      file.metadata[name] = samples[i].python;
      for (std::size_t k = 0; k < samples[i].inputs.size(); ++k) {
        file.tensors.emplace_back(name + "/x" + std::to_string(k), samples[i].inputs[k]);
      }
    }
  }
  tandem::data::save_tensors(argv[1], file);
}
