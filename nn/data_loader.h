#pragma once
// Batches of a data set: in order or shuffled, prepared ahead by worker threads.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "dataset.h"

namespace tandem::data {

struct LoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;  ///< another order in every epoch, which depends on seed and epoch only
  std::uint64_t seed = 0;
  bool drop_last = false;  ///< leaves out a last batch that is short
  int workers = 0;         ///< threads that prepare batches; 0: the caller prepares each when it asks for it
  int prefetch = 2;        ///< batches that each worker may be ahead
};

/// A position in the data: the next batch to be delivered.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t next_batch = 0;
  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

/// One pass of a range-for delivers one epoch:
///
///     for (auto& [x, y] : loader) step(x, y);
///
/// Batches and their order do not depend on the number of workers. A pass that is left early ends there, and the next
/// one begins the next epoch. What Dataset::get throws comes out of the iterator as an Error that names batch and
/// epoch, with the original nested in it; the batches before have then been delivered.
///
/// To be used from one thread, with one pass at a time; must outlive its iterators.
class DataLoader {
 public:
  class Iterator;

  /// Throws ValueError for options outside their range or a null data set.
  explicit DataLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options = {});
  template <std::derived_from<Dataset> D>
  explicit DataLoader(D dataset, const LoaderOptions& options = {})
      : DataLoader(std::make_shared<const D>(std::move(dataset)), options) {}

  /// Batches of an epoch.
  std::int64_t size() const;
  const Dataset& dataset() const { return *dataset_; }
  const LoaderOptions& options() const { return options_; }

  /// The position behind the newest delivered batch: within the loop's body, the batch at hand counts as done. Behind
  /// the last batch of an epoch it is {epoch, size()} until the loop ends, then {epoch + 1, 0}.
  LoaderState state() const { return state_; }
  /// The next pass goes on at `state`, exactly as it would have gone on then; it delivers nothing if that is behind the
  /// last batch. Data set, batch_size, shuffle, seed and drop_last must be the same. Throws ValueError for a position
  /// that does not exist.
  void restore(const LoaderState& state);

  /// Starts a pass, and the workers.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  class Pass;
  std::optional<Batch> next(Pass& pass);

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  LoaderState state_;
  bool under_way_ = false;  ///< whether a pass has begun at state_.epoch and not come to its end
};

/// An input iterator. Its end stops and joins the workers.
class DataLoader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;
  ~Iterator();

  Batch& operator*() const { return *batch_; }
  Batch* operator->() const { return &*batch_; }
  Iterator& operator++();
  void operator++(int) { ++*this; }
  friend bool operator==(const Iterator& it, std::default_sentinel_t) { return !it.batch_; }

 private:
  friend DataLoader;
  Iterator(DataLoader& loader, std::unique_ptr<Pass> pass);

  DataLoader* loader_;
  std::unique_ptr<Pass> pass_;
  mutable std::optional<Batch> batch_;
};

}  // namespace tandem::data
