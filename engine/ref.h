#pragma once
// Intrusive reference counting.

#include <atomic>
#include <cstdint>
#include <utility>

namespace tandem {

/// Base of objects held by Ref. `T::destroy(T*)` is called when the last Ref goes.
template <class T>
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  std::uint32_t ref_count() const { return refs_.load(std::memory_order_acquire); }

 protected:
  ~RefCounted() = default;

 private:
  template <class U>
  friend class Ref;
  mutable std::atomic<std::uint32_t> refs_{0};
};

/// Shared owner of a RefCounted object.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  explicit Ref(T* p) : p_(p) {
    if (p_) p_->refs_.fetch_add(1, std::memory_order_relaxed);
  }
  Ref(const Ref& o) : Ref(o.p_) {}
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() {
    if (p_ && p_->refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) T::destroy(p_);
  }

  T* get() const { return p_; }
  T& operator*() const { return *p_; }
  T* operator->() const { return p_; }
  explicit operator bool() const { return p_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.p_ == b.p_; }

 private:
  T* p_ = nullptr;
};

template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace tandem
