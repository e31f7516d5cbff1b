// DataLoader: the order of an epoch, and the workers that prepare its batches.

#include "data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <stop_token>
#include <thread>
#include <vector>

#include "../engine/context.h"
#include "../engine/error.h"
#include "../kernels/math/philox.h"

namespace tandem::data {
namespace {

/// The numbers 0 to n - 1, shuffled by Fisher and Yates. A position's draw is biased by less than n / 2^64.
std::vector<std::int64_t> shuffled(std::int64_t n, std::uint64_t seed, std::int64_t epoch) {
  // Devices draw from the lower streams.
  const std::uint64_t stream = std::uint64_t{1} << 63 | static_cast<std::uint64_t>(epoch);
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::uint64_t i = order.size(); i > 1; --i) {
    const kernels::PhiloxBlock block = kernels::philox(seed, stream, i);
    std::swap(order[i - 1], order[kernels::join_words(block.word[0], block.word[1]) % i]);
  }
  return order;
}

}  // namespace

/// What is under way between begin() and the end of an iterator: the order of the examples, and the workers.
class DataLoader::Pass {
 public:
  Pass(const DataLoader& loader, std::int64_t first_batch)
      : dataset_(loader.dataset_),
        batch_size_(loader.options_.batch_size),
        batches_(loader.size()),
        delivered_(first_batch),
        claimed_(first_batch) {
    if (loader.options_.shuffle) {
      order_ = shuffled(dataset_->size(), loader.options_.seed, loader.state_.epoch);
    } else {
      order_.resize(static_cast<std::size_t>(dataset_->size()));
      std::iota(order_.begin(), order_.end(), 0);
    }
    const auto workers =
        static_cast<std::size_t>(std::min<std::int64_t>(loader.options_.workers, batches_ - first_batch));
    slots_.resize(workers * static_cast<std::size_t>(loader.options_.prefetch));
    Context worker_context = context();
    worker_context.grad_enabled = false;
    worker_context.threads = 1;
    for (std::size_t i = 0; i < workers; ++i) {
      threads_.emplace_back([this, worker_context](std::stop_token stop) {
        const ContextGuard guard(worker_context);
        work(stop);
      });
    }
  }

  /// The next batch in order, or nothing at the end.
  std::optional<Batch> next() {
    if (delivered_ == batches_) return std::nullopt;
    if (threads_.empty()) {
      const NoGradGuard no_grad;
      Batch batch = prepare(delivered_);
      ++delivered_;
      return batch;
    }
    std::unique_lock lock(mutex_);
    Slot& slot = slot_of(delivered_);
    ready_.wait(lock, [&] { return slot.batch || slot.failure; });
    if (slot.failure) std::rethrow_exception(slot.failure);
    std::optional<Batch> batch = std::exchange(slot.batch, std::nullopt);
    ++delivered_;
    room_.notify_one();
    return batch;
  }

 private:
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr failure;
  };

  Batch prepare(std::int64_t batch) const {
    const auto begin = static_cast<std::size_t>(batch * batch_size_);
    const std::size_t n = std::min(order_.size() - begin, static_cast<std::size_t>(batch_size_));
    return dataset_->get(std::span(order_).subspan(begin, n));
  }

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto has_room = [&] { return claimed_ < delivered_ + static_cast<std::int64_t>(slots_.size()); };
    while (claimed_ < batches_) {
      if (!room_.wait(lock, stop, has_room)) return;
      if (claimed_ == batches_) return;
      const std::int64_t batch = claimed_++;
      lock.unlock();
      Slot done;
      try {
        done.batch = prepare(batch);
      } catch (...) {
        done.failure = std::current_exception();
      }
      lock.lock();
      slot_of(batch) = std::move(done);
      if (batch == delivered_) ready_.notify_one();
    }
  }

  Slot& slot_of(std::int64_t batch) { return slots_[static_cast<std::size_t>(batch) % slots_.size()]; }

  const std::shared_ptr<const Dataset> dataset_;
  const std::int64_t batch_size_, batches_;
  std::vector<std::int64_t> order_;

  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable_any room_;
  std::int64_t delivered_, claimed_;
  std::vector<Slot> slots_;            ///< a ring: at most as many batches are claimed and not delivered
  std::vector<std::jthread> threads_;  ///< last, so that they end before what they use
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  if (!dataset_) throw ValueError("DataLoader: a data set is wanted, got null");
  const auto check = [](const char* name, std::int64_t value, std::int64_t lowest, std::int64_t highest) {
    if (value >= lowest && value <= highest) return;
    throw ValueError(fmt::format("DataLoader: {} is {}, {} to {} is wanted", name, value, lowest, highest));
  };
  check("batch_size", options_.batch_size, 1, std::int64_t{1} << 40);
  check("workers", options_.workers, 0, 256);
  check("prefetch", options_.prefetch, 1, 1024);
}

std::int64_t DataLoader::size() const {
  const std::int64_t n = dataset_->size(), whole = n / options_.batch_size;
  return options_.drop_last || n % options_.batch_size == 0 ? whole : whole + 1;
}

void DataLoader::restore(const LoaderState& state) {
  if (state.epoch < 0 || state.next_batch < 0 || state.next_batch > size()) {
    throw ValueError(fmt::format("DataLoader: cannot go on at batch {} of epoch {}, an epoch has {} batches",
                                 state.next_batch, state.epoch, size()));
  }
  state_ = state;
  under_way_ = false;
}

DataLoader::Iterator DataLoader::begin() {
  if (std::exchange(under_way_, true)) state_ = {state_.epoch + 1, 0};
  return Iterator(*this, std::make_unique<Pass>(*this, state_.next_batch));
}

std::optional<Batch> DataLoader::next(Pass& pass) {
  const auto message = [&](const char* what) {
    return fmt::format("DataLoader: batch {} of epoch {}: {}", state_.next_batch, state_.epoch, what);
  };
  std::optional<Batch> batch;
  try {
    batch = pass.next();
  } catch (const std::exception& e) {
    std::throw_with_nested(Error(message(e.what())));
  } catch (...) {
    std::throw_with_nested(Error(message("unknown exception")));
  }
  if (batch) {
    ++state_.next_batch;
  } else {
    state_ = {state_.epoch + 1, 0};
    under_way_ = false;
  }
  return batch;
}

DataLoader::Iterator::Iterator(DataLoader& loader, std::unique_ptr<Pass> pass)
    : loader_(&loader), pass_(std::move(pass)), batch_(loader.next(*pass_)) {}
DataLoader::Iterator::Iterator(Iterator&&) noexcept = default;
DataLoader::Iterator& DataLoader::Iterator::operator=(Iterator&&) noexcept = default;
DataLoader::Iterator::~Iterator() = default;

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  batch_.reset();  // before the next is prepared, so that its memory can be used again
  batch_ = loader_->next(*pass_);
  return *this;
}

}  // namespace tandem::data
