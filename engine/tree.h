#pragma once
// Trees: values that hold tensors, such as the arguments and results of a model. Walks over them are resolved at
// compile time.
//
// A tree is a Tensor, or a tuple, pair, array, vector, map, unordered_map or optional that can hold one, or a struct
// that lists its fields:
//
//     struct Batch {
//       Tensor image, label;
//       double weight = 1;
//       TANDEM_TREE(Batch, image, label, weight)
//     };
//     Batch batch{.image = x, .label = y};
//
// Every other type is a leaf that walks do not look into.

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "error.h"
#include "for_each.h"
#include "tensor.h"

namespace tandem {

/// Lists the fields of the struct in which it stands, by which walks reach them. An aggregate stays one.
#define TANDEM_TREE(Type, ...) \
  static constexpr auto tree_fields() { return std::tuple{TANDEM_FOR_EACH(TANDEM_TREE_FIELD, Type, __VA_ARGS__)}; }
#define TANDEM_TREE_FIELD(Type, name) ::tandem::TreeField{#name, &Type::name},

template <class Struct, class Member>
struct TreeField {
  constexpr TreeField(const char* n, Member Struct::*p) : name(n), pointer(p) {}
  const char* name;
  Member Struct::*pointer;
};

/// Where a walk stands, as in args[0].x["b"][2]. A path refers to its parent, so both live on the walk's stack; the
/// text is made on request only.
class Path {
 public:
  explicit Path(const char* root = "") : name_(root) {}

  Path field(const char* name) const { return {this, name, 0, nullptr, nullptr}; }
  Path index(std::size_t i) const { return {this, nullptr, i, nullptr, nullptr}; }
  template <class K>
  Path key(const K& k) const {
    return {this, nullptr, 0, &k, &key_text<K>};
  }

  std::string str() const {
    if (!parent_) return name_;
    const std::string head = parent_->str();
    if (name_) return head.empty() ? name_ : head + "." + name_;
    return head + "[" + (key_ ? key_text_(key_) : std::to_string(index_)) + "]";
  }

 private:
  using KeyText = std::string (*)(const void*);
  Path(const Path* parent, const char* name, std::size_t index, const void* key, KeyText text)
      : parent_(parent), name_(name), index_(index), key_(key), key_text_(text) {}

  template <class K>
  static std::string key_text(const void* key) {
    const K& k = *static_cast<const K*>(key);
    if constexpr (std::convertible_to<const K&, std::string>) {
      return '"' + std::string(k) + '"';
    } else if constexpr (std::integral<K>) {
      return std::to_string(k);
    } else {
      return "?";
    }
  }

  const Path* parent_ = nullptr;
  const char* name_ = nullptr;
  std::size_t index_ = 0;
  const void* key_ = nullptr;
  KeyText key_text_ = nullptr;
};

/// The same place in several trees of one type, at least one.
template <class T>
using Row = std::span<T* const>;

/// How to walk a T. A specialisation for a type that cannot carry TANDEM_TREE has
/// - `static constexpr bool is_tree = true`, and
/// - `static void children(Row<Q> row, const Path& path, F& f)`, Q being T or const T, which calls
///   f(Row<Child>, const Path&) for each child and throws TreeMismatch when the trees of the row differ in structure.
template <class T>
struct TreeTraits {
  static constexpr bool is_tree = std::derived_from<T, Tensor>;
};

/// Whether walks look into T.
template <class T>
inline constexpr bool is_tree = TreeTraits<std::remove_cvref_t<T>>::is_tree;

/// Trees that were to be walked side by side have different structures: at `path`, tree 0 has `first` and tree `index`
/// has `other`, such as "2 elements" and "none".
struct TreeMismatch : ValueError {
  TreeMismatch(const std::string& path_, const std::string& first_, std::size_t index_, const std::string& other_)
      : ValueError("trees differ" + (path_.empty() ? "" : " at " + path_) + ": tree 0 has " + first_ + ", tree " +
                   std::to_string(index_) + " has " + other_),
        path(path_),
        first(first_),
        index(index_),
        other(other_) {}
  std::string path, first;
  std::size_t index;
  std::string other;
};

namespace tree_detail {

[[noreturn]] inline void mismatch(const Path& path, const std::string& first, std::size_t i, const std::string& other) {
  throw TreeMismatch(path.str(), first, i, other);
}

/// Calls f on the row of get(tree, i), for tree number i.
template <class T, class F, class Get>
void descend(Row<T> row, const Path& path, F& f, Get get) {
  using Child = std::remove_reference_t<decltype(get(*row[0], std::size_t{}))>;
  std::vector<Child*> children(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) children[i] = std::addressof(get(*row[i], i));
  f(Row<Child>(children), path);
}

template <class T>
void check_sizes(Row<T> row, const Path& path, const std::string& what) {
  const auto text = [&](const T& t) { return std::to_string(t.size()) + what; };
  for (std::size_t i = 1; i < row.size(); ++i) {
    if (row[i]->size() != row[0]->size()) mismatch(path, text(*row[0]), i, text(*row[i]));
  }
}

template <class T, class F>
void elements(Row<T> row, const Path& path, F& f) {
  check_sizes(row, path, " elements");
  for (std::size_t k = 0; k < row[0]->size(); ++k) {
    descend(
        row, path.index(k), f, [k](T & t, std::size_t) -> auto& { return t[k]; });
  }
}

template <class T, class F>
void values(Row<T> row, const Path& path, F& f) {
  check_sizes(row, path, " keys");
  for (const auto& entry : *row[0]) {
    const Path here = path.key(entry.first);
    descend(
        row, here, f, [&](T & t, std::size_t i) -> auto& {
          const auto found = t.find(entry.first);
          if (found == t.end()) mismatch(here, "this key", i, "none");
          return found->second;
        });
  }
}

}  // namespace tree_detail

template <class T>
requires requires { T::tree_fields(); }
struct TreeTraits<T> {
  static constexpr bool is_tree = true;
  template <class Q, class F>
  static void children(Row<Q> row, const Path& path, F& f) {
    auto visit = [&](const auto&... field) {
      (tree_detail::descend(
           row, path.field(field.name), f, [&](Q & t, std::size_t) -> auto& { return t.*field.pointer; }),
       ...);
    };
    std::apply(visit, T::tree_fields());
  }
};

template <class... T>
struct TreeTraits<std::tuple<T...>> {
  static constexpr bool is_tree = (false || ... || tandem::is_tree<T>);
  template <class Q, class F>
  static void children(Row<Q> row, const Path& path, F& f) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (tree_detail::descend(
           row, path.index(I), f, [](Q & t, std::size_t) -> auto& { return std::get<I>(t); }),
       ...);
    }
    (std::index_sequence_for<T...>());
  }
};

template <class A, class B>
struct TreeTraits<std::pair<A, B>> {
  static constexpr bool is_tree = tandem::is_tree<A> || tandem::is_tree<B>;
  template <class Q, class F>
  static void children(Row<Q> row, const Path& path, F& f) {
    tree_detail::descend(
        row, path.field("first"), f, [](Q & t, std::size_t) -> auto& { return t.first; });
    tree_detail::descend(
        row, path.field("second"), f, [](Q & t, std::size_t) -> auto& { return t.second; });
  }
};

template <class T>
struct TreeTraits<std::optional<T>> {
  static constexpr bool is_tree = tandem::is_tree<T>;
  template <class Q, class F>
  static void children(Row<Q> row, const Path& path, F& f) {
    const auto text = [](const Q* t) { return t->has_value() ? "a value" : "none"; };
    for (std::size_t i = 1; i < row.size(); ++i) {
      if (row[i]->has_value() != row[0]->has_value()) tree_detail::mismatch(path, text(row[0]), i, text(row[i]));
    }
    if (row[0]->has_value())
      tree_detail::descend(
          row, path, f, [](Q & t, std::size_t) -> auto& { return *t; });
  }
};

template <class T, class Allocator>
struct TreeTraits<std::vector<T, Allocator>> {
  static constexpr bool is_tree = tandem::is_tree<T>;
  template <class Q, class F>
  static void children(Row<Q> row, const Path& path, F& f) {
    tree_detail::elements(row, path, f);
  }
};

template <class T, std::size_t N>
struct TreeTraits<std::array<T, N>> : TreeTraits<std::vector<T>> {};

template <class K, class V, class... Policies>
struct TreeTraits<std::map<K, V, Policies...>> {
  static constexpr bool is_tree = tandem::is_tree<V>;
  template <class Q, class F>
  static void children(Row<Q> row, const Path& path, F& f) {
    tree_detail::values(row, path, f);
  }
};

template <class K, class V, class... Policies>
struct TreeTraits<std::unordered_map<K, V, Policies...>> : TreeTraits<std::map<K, V>> {};

/// Walks trees of one type side by side. Calls on_tensors(Row<Tensor>, const Path&) where they hold a tensor, defined
/// or not, and on_leaves(Row<Leaf>, const Path&) where they hold a leaf; both get const elements if T is const.
/// Containers must agree in size, in keys and in presence: TreeMismatch as soon as they do not. A type
/// other than Tensor whose row on_tensors takes goes to it whole.
template <class T, class OnTensors, class OnLeaves>
void zip_trees(Row<T> trees, OnTensors&& on_tensors, OnLeaves&& on_leaves, const Path& path = Path()) {
  using Value = std::remove_const_t<T>;
  if constexpr (std::invocable<OnTensors&, Row<T>, const Path&>) {
    on_tensors(trees, path);
  } else if constexpr (std::derived_from<Value, Tensor>) {
    using Base = std::conditional_t<std::is_const_v<T>, const Tensor, Tensor>;
    tree_detail::descend(trees, path, on_tensors, [](T& t, std::size_t) -> Base& { return t; });
  } else if constexpr (is_tree<Value>) {
    auto f = [&]<class Child>(Row<Child> children, const Path& at) { zip_trees(children, on_tensors, on_leaves, at); };
    TreeTraits<Value>::children(trees, path, f);
  } else {
    on_leaves(trees, path);
  }
}

/// Calls f(tensor, path), or f(tensor), on every tensor of a tree, in order; undefined ones too. f may assign to the
/// tensors of a tree that is not const.
template <class T, class F>
void for_each_tensor(T&& tree, F&& f, const Path& path = Path()) {
  using Value = std::remove_reference_t<T>;
  using Element = std::conditional_t<std::is_const_v<Value>, const Tensor, Tensor>;
  Value* const address = std::addressof(tree);
  zip_trees(
      Row<Value>(&address, 1),
      [&](Row<Element> row, const Path& at) {
        if constexpr (std::invocable<F&, Element&, const Path&>) {
          f(*row[0], at);
        } else {
          f(*row[0]);
        }
      },
      [](const auto&, const Path&) {}, path);
}

/// Every tensor of a tree, in order; undefined ones too.
template <class T>
std::vector<Tensor> collect_tensors(const T& tree) {
  std::vector<Tensor> tensors;
  for_each_tensor(tree, [&](const Tensor& t) { tensors.push_back(t); });
  return tensors;
}

/// A copy of a tree in which every tensor t is f(t, path), or f(t). Leaves and fields that are not listed are copied.
template <class T, class F>
T map_tensors(const T& tree, F&& f, const Path& path = Path()) {
  T result = tree;
  for_each_tensor(
      result,
      [&](Tensor& t, const Path& at) {
        if constexpr (std::invocable<F&, const Tensor&, const Path&>) {
          t = f(std::as_const(t), at);
        } else {
          t = f(std::as_const(t));
        }
      },
      path);
  return result;
}

}  // namespace tandem
