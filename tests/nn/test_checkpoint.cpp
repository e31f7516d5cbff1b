// Checkpoints: exact resume, damage, misfits, and the way to Python and back.

#include <tandem/tandem.h>

#include <cstdlib>

#include "../devices.h"
#include "files.h"

using namespace tandem;

namespace {

struct Mlp : nn::Module {
  nn::Linear fc1{4, 8}, fc2{8, 3};
  nn::Dropout drop{0.3};
  Tensor forward(const Tensor& x) { return fc2(drop(relu(fc1(x)))); }
  TANDEM_MODULE(Mlp, fc1, fc2, drop)
};

/// Everything that a run consists of.
struct Training {
  Mlp model;
  optim::AdamW optimizer{model.parameters(), {.lr = 0.02}};
  data::DataLoader loader{data::TensorDataset(from_vector(inputs(), {20, 4}), labels()),
                          {.batch_size = 3, .shuffle = true, .seed = 9}};

  static std::vector<float> inputs() {
    std::vector<float> v(80);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i * 37 % 23) / 8 - 1;
    return v;
  }
  static Tensor labels() {
    std::vector<std::int64_t> v(20);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::int64_t>(i * 5 % 3);
    return from_vector(v, {20});
  }

  /// Losses of the next `steps` steps, across epochs.
  std::vector<double> run(int steps) {
    std::vector<double> losses;
    while (true) {
      for (auto& [x, y] : loader) {
        optimizer.zero_grad();
        const Tensor loss = cross_entropy(model(x), y);
        loss.backward();
        optimizer.step();
        losses.push_back(loss.item());
        if (static_cast<int>(losses.size()) == steps) return losses;
      }
    }
  }
};

std::vector<double> all_values(nn::Module& m) {
  std::vector<double> all;
  for (const auto& [name, t] : m.state_dict()) {
    for (double v : t.to_vector()) all.push_back(v);
  }
  return all;
}

}  // namespace

TEST_CASE("a resumed run has the same losses, bit for bit, dropout and data order included", "[checkpoint]") {
  ON_EVERY_DEVICE(on);
  const testing::TempDir dir;
  manual_seed(4);
  Training whole;
  const std::vector<double> first = whole.run(11);
  nn::save_checkpoint(dir / "c", whole.model, whole.optimizer, whole.loader, 11);
  // run() left its pass early; a pass goes on at a position only when told so.
  whole.loader.restore(whole.loader.state());
  const std::vector<double> rest = whole.run(15);

  manual_seed(77);
  Training other;
  other.run(2);
  CHECK(nn::load_checkpoint(dir / "c", other.model, other.optimizer, other.loader) == 11);
  CHECK(other.run(15) == rest);
  CHECK(all_values(other.model) == all_values(whole.model));
}

TEST_CASE("every truncation of a checkpoint is refused and changes nothing", "[checkpoint]") {
  ON_EVERY_DEVICE(on);
  const testing::TempDir dir;
  manual_seed(4);
  Training t;
  t.run(3);
  nn::save_checkpoint(dir / "c", t.model, t.optimizer, t.loader, 3);
  const std::string bytes = testing::content(dir / "c");
  t.run(2);
  const std::vector<double> before = all_values(t.model);
  for (std::size_t n = 0; n < bytes.size(); n += n < 64 ? 1 : 7) {
    testing::put(dir / "cut", bytes.substr(0, n));
    try {
      nn::load_checkpoint(dir / "cut", t.model, t.optimizer, t.loader);
      FAIL("loaded " << n << " bytes");
    } catch (const FormatError& e) {
      CHECK(std::string(e.what()).find("cut") != std::string::npos);
    }
  }
  CHECK(all_values(t.model) == before);
}

TEST_CASE("a checkpoint of something else is refused as a whole", "[checkpoint]") {
  ON_EVERY_DEVICE(on);
  const testing::TempDir dir;
  Training t;
  t.run(2);
  nn::save_checkpoint(dir / "c", t.model, t.optimizer, t.loader, 2);
  const std::vector<double> before = all_values(t.model);

  optim::SGD sgd(t.model.parameters(), {.lr = 0.1});
  CHECK_THROWS_AS(nn::load_checkpoint(dir / "c", t.model, sgd, t.loader), ValueError);
  CHECK(all_values(t.model) == before);

  data::DataLoader longer(data::TensorDataset(zeros({3, 4}), zeros({3}, kInt64)), {.batch_size = 3});
  CHECK_THROWS_AS(nn::load_checkpoint(dir / "c", t.model, t.optimizer, longer), ValueError);
  CHECK(all_values(t.model) == before);

  data::save_tensors(dir / "weights", {t.model.state_dict(), {}});
  CHECK_THROWS_AS(nn::load_checkpoint(dir / "weights", t.model, t.optimizer, t.loader), FormatError);
  CHECK_THROWS_AS(nn::load_checkpoint(dir / "missing", t.model, t.optimizer, t.loader), IoError);
}

TEST_CASE("Python computes the same logits from saved weights, and its file loads", "[checkpoint][python]") {
  ON_EVERY_DEVICE(on);
  const std::string script = testing::check_safetensors();
  if (script.empty()) {
    WARN("skipped: there is no Python with numpy");
    return;
  }
  const testing::TempDir dir;
  manual_seed(1);
  Training t;
  t.run(4);
  t.model.eval();
  nn::save_checkpoint(dir / "weights", t.model, t.optimizer, t.loader, 4);
  const Tensor x = randn({5, 4});
  data::save_tensors(dir / "io", {{{"x", x}}, {}});
  const std::string command = script + "mlp '" + (dir / "weights").string() + "' '" + (dir / "io").string() + "'";
  REQUIRE(std::system(command.c_str()) == 0);
  const data::TensorFile io = data::load_tensors(dir / "io");
  REQUIRE(io.tensors.size() == 2);
  CHECK(io.tensors[1].first == "logits");
  const NoGradGuard no_grad;
  CHECK(allclose(io.tensors[1].second.to(on(0)), t.model(x), 1e-5, 1e-6));
}
