// DataLoader: order, workers, errors, and going on where one stopped.

#include "../../nn/data_loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../../engine/context.h"
#include "../../engine/error.h"
#include "../../engine/ops.h"
#include "../catch.h"
#include "files.h"

using namespace tandem;
using namespace tandem::data;
using testing::message;

namespace {

using Ints = std::vector<std::int64_t>;

/// Example i is (i, 10 i + 1) -> i.
TensorDataset numbers(std::int64_t n) {
  Ints inputs, targets;
  for (std::int64_t i = 0; i < n; ++i) {
    inputs.insert(inputs.end(), {i, 10 * i + 1});
    targets.push_back(i);
  }
  return TensorDataset(from_vector(inputs, {n, 2}), from_vector(targets, {n}));
}

/// The targets of a pass, batch by batch.
std::vector<Ints> pass(DataLoader& loader) {
  std::vector<Ints> batches;
  for (const auto& [x, y] : loader) {
    batches.push_back(y.to_vector<std::int64_t>());
    REQUIRE(x.sizes() == Shape{y.numel(), 2});
    for (std::int64_t i = 0; i < y.numel(); ++i) REQUIRE(x[i][1].item() == 10 * y[i].item() + 1);
  }
  return batches;
}
Ints flat(const std::vector<Ints>& batches) {
  Ints all;
  for (const Ints& b : batches) all.insert(all.end(), b.begin(), b.end());
  return all;
}
Ints sorted(Ints v) {
  std::sort(v.begin(), v.end());
  return v;
}
Ints range(std::int64_t n) {
  Ints v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

/// Counts calls, takes a different time for each, and fails at one example.
class Odd : public Dataset {
 public:
  explicit Odd(std::int64_t n, std::int64_t bad = -1) : data_(numbers(n)), bad_(bad) {}
  std::int64_t size() const override { return data_.size(); }
  Batch get(std::span<const std::int64_t> indices) const override {
    ++calls;
    if (context().grad_enabled) ++calls_with_tape;
    std::this_thread::sleep_for(std::chrono::microseconds(indices[0] * 7919 % 5 * 300));
    if (std::ranges::find(indices, bad_) != indices.end()) throw IndexError("example " + std::to_string(bad_));
    return data_.get(indices);
  }
  mutable std::atomic<int> calls{0}, calls_with_tape{0};

 private:
  TensorDataset data_;
  std::int64_t bad_;
};

}  // namespace

TEST_CASE("a tensor data set gives the rows asked for", "[data_loader]") {
  const TensorDataset data = numbers(5);
  CHECK(data.size() == 5);
  const Batch batch = data.get(Ints{4, 0, 4});
  CHECK(batch.input.to_vector<std::int64_t>() == Ints{4, 41, 0, 1, 4, 41});
  CHECK(batch.target.to_vector<std::int64_t>() == Ints{4, 0, 4});

  const auto said = message<ShapeError>([] { TensorDataset(zeros({3, 2}), zeros({4})); });
  CHECK_THAT(said, ContainsSubstring("(3, 2)") && ContainsSubstring("(4)"));
  CHECK_THROWS_AS(TensorDataset(zeros({}), zeros({})), ShapeError);
  CHECK_THROWS_AS(TensorDataset(Tensor(), zeros({1})), ValueError);

  const TensorDataset elsewhere(zeros({3, 2}).to(cpu(1)), zeros({3}));
  const Batch mixed = elsewhere.get(Ints{1});
  CHECK(mixed.input.device() == cpu(1));
  CHECK(mixed.target.device() == cpu(0));
}

TEST_CASE("batches in order, and the last-batch rule", "[data_loader]") {
  DataLoader all(numbers(7), {.batch_size = 3});
  CHECK(all.size() == 3);
  CHECK(pass(all) == std::vector<Ints>{{0, 1, 2}, {3, 4, 5}, {6}});
  DataLoader whole(numbers(7), {.batch_size = 3, .drop_last = true});
  CHECK(whole.size() == 2);
  CHECK(pass(whole) == std::vector<Ints>{{0, 1, 2}, {3, 4, 5}});
  DataLoader exact(numbers(6), {.batch_size = 3, .drop_last = true, .workers = 2});
  CHECK(pass(exact) == std::vector<Ints>{{0, 1, 2}, {3, 4, 5}});
  DataLoader large(numbers(2), {.batch_size = 100, .workers = 3});
  CHECK(pass(large) == std::vector<Ints>{{0, 1}});
  DataLoader none(numbers(2), {.batch_size = 100, .drop_last = true, .workers = 3});
  CHECK(none.size() == 0);
  CHECK(pass(none).empty());
  CHECK(none.state() == LoaderState{1, 0});
  DataLoader nothing(numbers(0), {.batch_size = 4, .shuffle = true, .workers = 1});
  CHECK(pass(nothing).empty());
}

TEST_CASE("shuffling depends on seed and epoch alone", "[data_loader]") {
  DataLoader a(numbers(50), {.batch_size = 8, .shuffle = true, .seed = 3});
  DataLoader b(numbers(50), {.batch_size = 8, .shuffle = true, .seed = 3, .workers = 3, .prefetch = 1});
  DataLoader c(numbers(50), {.batch_size = 8, .shuffle = true, .seed = 4});
  std::set<Ints> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    const auto batches = pass(a);
    CHECK(pass(b) == batches);
    const Ints order = flat(batches);
    CHECK(sorted(order) == range(50));
    orders.insert(order);
    orders.insert(flat(pass(c)));
  }
  CHECK(orders.size() == 8);
  CHECK(orders.count(range(50)) == 0);
}

TEST_CASE("every place is equally likely for every example", "[data_loader]") {
  constexpr int kPlaces = 8, kEpochs = 4000;
  DataLoader loader(numbers(kPlaces), {.batch_size = kPlaces, .shuffle = true, .seed = 1});
  double counts[kPlaces][kPlaces] = {};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (const Batch& batch : loader) {
      const auto* order = batch.target.data<std::int64_t>();
      for (int place = 0; place < kPlaces; ++place) ++counts[place][order[place]];
    }
  }
  double chi2 = 0;
  for (const auto& row : counts) {
    for (const double n : row) chi2 += (n - kEpochs / kPlaces) * (n - kEpochs / kPlaces) / (kEpochs / kPlaces);
  }
  CHECK(chi2 < 90);  // 49 degrees of freedom: more than that in 3 of 10,000
  CHECK(chi2 > 20);
}

TEST_CASE("any number of workers delivers the same batches in order", "[data_loader]") {
  for (int workers : {0, 1, 2, 5}) {
    for (int prefetch : {1, 3}) {
      auto data = std::make_shared<const Odd>(40);
      DataLoader loader(data, {.batch_size = 3, .workers = workers, .prefetch = prefetch});
      CHECK(flat(pass(loader)) == range(40));
      CHECK(flat(pass(loader)) == range(40));
      CHECK(data->calls == 28);
      CHECK(data->calls_with_tape == 0);
      CHECK(loader.state() == LoaderState{2, 0});
    }
  }
}

TEST_CASE("workers are ahead by prefetch batches each, not more", "[data_loader]") {
  auto data = std::make_shared<const Odd>(100);
  DataLoader loader(data, {.workers = 2, .prefetch = 3});
  auto it = loader.begin();
  for (int i = 0; i < 5000 && data->calls < 7; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(data->calls == 7);
  CHECK(it->target.item() == 0);
}

TEST_CASE("a pass that is left early ends cleanly", "[data_loader]") {
  for (int workers : {0, 1, 4}) {
    DataLoader loader(numbers(100), {.batch_size = 2, .workers = workers});
    for (int epoch = 0; epoch < 20; ++epoch) {
      for (const Batch& batch : loader) {
        if (batch.target[0].item() >= epoch) break;
      }
    }
    CHECK(loader.state().epoch == 19);
    CHECK(loader.state().next_batch == 11);
    CHECK(flat(pass(loader)) == range(100));
    CHECK(loader.state() == LoaderState{21, 0});
    { const auto unused = loader.begin(); }
    CHECK(loader.state() == LoaderState{21, 1});
  }
}

TEST_CASE("what a data set throws comes out with the batch number", "[data_loader]") {
  for (int workers : {0, 1, 4}) {
    DataLoader loader(std::make_shared<const Odd>(40, 13), {.batch_size = 3, .workers = workers});
    Ints seen;
    const auto run = [&] {
      for (const Batch& batch : loader) seen.push_back(batch.target[0].item<std::int64_t>());
    };
    CHECK(message<Error>(run) == "DataLoader: batch 4 of epoch 0: example 13");
    CHECK(seen == Ints{0, 3, 6, 9});
    CHECK(loader.state() == LoaderState{0, 4});
    try {
      run();
      FAIL("nothing thrown");
    } catch (const std::exception& e) {
      CHECK_THAT(e.what(), ContainsSubstring("batch 4 of epoch 1"));
      CHECK_THROWS_AS(std::rethrow_if_nested(e), IndexError);
    }
    loader.restore({0, 5});
    seen.clear();
    run();
    CHECK(seen.front() == 15);
    CHECK(seen.size() == 9);
  }
}

TEST_CASE("a restored loader goes on where the other stood", "[data_loader]") {
  for (int workers : {0, 2}) {
    const LoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 9, .workers = workers};
    DataLoader straight(numbers(30), options);
    const std::vector<Ints> epochs[] = {pass(straight), pass(straight), pass(straight)};
    for (std::int64_t stop = 1; stop <= straight.size(); ++stop) {
      DataLoader first(numbers(30), options);
      pass(first);
      std::vector<Ints> got;
      LoaderState state;
      for (const Batch& batch : first) {
        got.push_back(batch.target.to_vector<std::int64_t>());
        state = first.state();
        if (state.next_batch == stop) break;
      }
      CHECK(state == LoaderState{1, stop});
      CHECK(first.state() == state);

      DataLoader second(numbers(30), options);
      second.restore(state);
      CHECK(second.state() == state);
      for (auto& batch : pass(second)) got.push_back(batch);
      CHECK(got == epochs[1]);
      CHECK(second.state() == LoaderState{2, 0});
      CHECK(pass(second) == epochs[2]);
    }
  }
}

TEST_CASE("loader options outside their range", "[data_loader]") {
  const auto said = [](const LoaderOptions& options) {
    return message<ValueError>([&] { DataLoader loader(numbers(3), options); });
  };
  CHECK_THAT(said({.batch_size = 0}), ContainsSubstring("batch_size is 0"));
  CHECK_THAT(said({.batch_size = -1}), ContainsSubstring("batch_size is -1"));
  CHECK_THAT(said({.workers = -1}), ContainsSubstring("workers is -1"));
  CHECK_THAT(said({.prefetch = 0}), ContainsSubstring("prefetch is 0"));
  CHECK_THROWS_AS(DataLoader(std::shared_ptr<const Dataset>()), ValueError);

  DataLoader loader(numbers(3), {.batch_size = 2});
  loader.restore({7, 2});
  for (const LoaderState& state : {LoaderState{-1, 0}, LoaderState{0, -1}, LoaderState{0, 3}}) {
    CHECK_THROWS_AS(loader.restore(state), ValueError);
  }
  CHECK(loader.state() == LoaderState{7, 2});
}
