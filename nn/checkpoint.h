#pragma once
// Checkpoints: everything that a training run needs to go on exactly where it was.
//
// One safetensors file: the module's tensors under their state-dict names, as PyTorch would name them; the optimizer's
// under "optimizer."; counts, options, the position in the data and every device's random state in the metadata.

#include <cstdint>
#include <filesystem>

#include "data_loader.h"
#include "module.h"
#include "optim.h"

namespace tandem::nn {

/// Replaces `path` by a checkpoint as a whole or not at all. IoError names the file.
void save_checkpoint(const std::filesystem::path& path, const Module& module, const optim::Optimizer& optimizer,
                     const data::DataLoader& loader, std::int64_t step);

/// Restores everything, and returns the step. IoError or FormatError for a damaged file, ValueError for one that does
/// not fit; then nothing has changed. Parameters change in place; an optimizer and a DataParallel see it.
std::int64_t load_checkpoint(const std::filesystem::path& path, Module& module, optim::Optimizer& optimizer,
                             data::DataLoader& loader);

}  // namespace tandem::nn
