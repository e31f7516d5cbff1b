// Trains a small convolutional network on handwritten digits, on one device or several.
//
// To read first: DigitsNet, the model; and train(), the loop. What differs from training on one device is one line, the
// one that makes `net`.

#include <fmt/format.h>

#include <tandem/tandem.h>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "digits_options.h"
#include "progress.h"

using namespace tandem;

namespace {

struct DigitsNet : nn::Module {
  nn::Conv2d conv1{1, 16, 3, {.padding = 1}}, conv2{16, 32, 3, {.padding = 1}};
  nn::Linear fc1{32 * 4 * 4, 64}, fc2{64, 10};

  Tensor forward(const Tensor& x) {
    Tensor h = relu(conv1(x));
    h = max_pool2d(relu(conv2(h)), {2, 2});
    return fc2(relu(fc1(h.flatten(1))));
  }
  TANDEM_MODULE(DigitsNet, conv1, conv2, fc1, fc2)
};

/// Images as (n, 1, 8, 8) in [0, 1], and their classes.
data::TensorDataset load(const std::filesystem::path& dir, const std::string& part, DType dtype) {
  const auto [images, labels] =
      data::load_idx_pair(dir / (part + "-images-idx3-ubyte.gz"), dir / (part + "-labels-idx1-ubyte.gz"));
  return {images.unsqueeze(1).to(dtype) / 16, labels};
}

volatile std::sig_atomic_t interrupted = 0;

double accuracy(parallel::DataParallel<DigitsNet>& net, data::DataLoader& test) {
  const NoGradGuard no_grad;
  std::int64_t right = 0;
  for (auto& [x, y] : test)
    right += eq(net(x.to(net.output_device())).argmax(1), y.to(net.output_device())).sum().item<std::int64_t>();
  return static_cast<double>(right) / static_cast<double>(test.dataset().size());
}

/// On the first device, which then sends parameters to the others; or on every device, where gradients go instead.
std::unique_ptr<optim::Optimizer> make_optimizer(parallel::DataParallel<DigitsNet>& net,
                                                 const optim::SGDOptions& options, bool synchronous) {
  if (synchronous) return std::make_unique<parallel::Synchronous<optim::SGD>>(net, options);
  return std::make_unique<optim::SGD>(net.parameters(), options);
}

int train(const DigitsOptions& options) {
  manual_seed(options.seed);
  const Device home = options.devices[0];
  data::DataLoader batches(load(options.data, "train", options.dtype),
                           {.batch_size = options.batch, .shuffle = true, .seed = options.seed, .workers = 1});
  data::DataLoader test(load(options.data, "test", options.dtype), {.batch_size = 256});

  DigitsNet model;
  model.to(options.dtype);
  model.to(home);
  parallel::DataParallel net(model, options.devices);
  parallel::Ledger& ledger = net.ledger();
  const std::unique_ptr<optim::Optimizer> optimizer =
      make_optimizer(net, {.lr = options.lr, .momentum = 0.9}, options.synchronous);
  optim::CosineAnnealingLR schedule(*optimizer, options.epochs * batches.size());
  std::int64_t step = 0;
  if (!options.resume.empty()) step = nn::load_checkpoint(options.resume, model, *optimizer, batches);
  schedule.set_epoch(step);

  Results results;
  Progress progress;
  double seconds = 0;
  std::int64_t images = 0;

  while (batches.state().epoch < options.epochs && !interrupted) {
    const std::int64_t epoch = batches.state().epoch;
    progress.start(fmt::format("epoch {:>2}/{}", epoch + 1, options.epochs), batches.size(),
                   batches.state().next_batch);
    for (auto& [x, y] : batches) {
      const std::int64_t begin = now_ns();
      Tensor loss = net(x.to(home));
      {
        const parallel::PhaseScope scope(&ledger, parallel::Phase::Loss, home);
        loss = cross_entropy(loss, y.to(home));
      }
      optimizer->zero_grad();
      loss.backward();
      {
        // With an optimizer on every device, each enters its own step.
        const parallel::PhaseScope scope(options.synchronous ? nullptr : &ledger, parallel::Phase::Step, home);
        optimizer->step();
      }
      schedule.step();
      results.loss.push_back(loss.item());
      ++step;
      seconds += static_cast<double>(now_ns() - begin) * 1e-9;
      images += x.size(0);
      progress.advance(results.loss.back(), static_cast<double>(images) / seconds);
      if (interrupted) break;
    }
    if (interrupted) break;
    results.accuracy.push_back(accuracy(net, test));
    progress.finish(
        fmt::format("loss {:.4f}  test accuracy {:.2f}%", results.loss.back(), 100 * results.accuracy.back()));
  }
  results.images_per_s = seconds > 0 ? static_cast<double>(images) / seconds : 0;

  progress.finish("");
  fmt::print("\n{}\nThe last step: check, scatter, replicate, forward, gather, loss, Backward, Reduce, Step\n{}",
             ledger.table(), ledger.timeline());
  if (!options.save.empty()) {
    nn::save_checkpoint(options.save, model, *optimizer, batches, step);
    fmt::print("\nweights   {}\n", options.save.string());
  }
  if (!options.json.empty()) {
    write_json(options.json, results, ledger);
    fmt::print("metrics   {}\n", options.json.string());
  }
  if (!options.trace.empty()) {
    data::write_file(options.trace, ledger.chrome_trace());
    fmt::print("timeline  {} (open it in ui.perfetto.dev)\n", options.trace.string());
  }
  if (!interrupted) return 0;
  fmt::print(stderr, "digits: interrupted after step {}{}\n", step,
             options.save.empty() ? "; nothing was saved, since there was no --save" : "; --resume continues");
  return 130;
}

}  // namespace

int main(int argc, char** argv) {
  // The first Ctrl-C ends the run after the step, a second one at once.
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
  DigitsOptions options;
  if (const auto code = parse(argc, argv, options)) return *code;
  try {
    return train(options);
  } catch (const std::exception& e) {
    fmt::print(stderr, "digits: {}\n", e.what());
    return 1;
  }
}
