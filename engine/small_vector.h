#pragma once
// A vector whose first N elements need no allocation. For lists that are short and grow at the end only.

#include <array>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace tandem {

template <class T, std::size_t N>
class SmallVector {
 public:
  void push_back(T x) {
    if (size_ < N) {
      inline_[size_++] = std::move(x);
      return;
    }
    if (heap_.empty()) heap_.assign(std::move_iterator(inline_.begin()), std::move_iterator(inline_.end()));
    heap_.push_back(std::move(x));
    ++size_;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<const T> view() const { return {size_ <= N ? inline_.data() : heap_.data(), size_}; }
  T& operator[](std::size_t i) { return size_ <= N ? inline_[i] : heap_[i]; }
  const T& operator[](std::size_t i) const { return size_ <= N ? inline_[i] : heap_[i]; }

 private:
  std::array<T, N> inline_{};
  std::vector<T> heap_;
  std::size_t size_ = 0;
};

}  // namespace tandem
