// Walks over trees of tensors.

#include <deque>

#include "../../engine/ops.h"
#include "../../engine/tree.h"
#include "../catch.h"

using namespace tandem;

namespace {

struct Batch {
  Tensor image{};
  std::map<std::string, Tensor> extra{};
  double weight = 1;
  Tensor untouched{};  // not listed
  TANDEM_TREE(Batch, image, extra, weight)
};

struct Branch {
  Tensor value{};
  std::vector<Branch> children{};
  TANDEM_TREE(Branch, value, children)
};

/// A type of somebody else's.
struct Foreign {
  std::deque<Tensor> tensors;
};

std::vector<std::string> paths(const auto& tree, const char* root = "") {
  std::vector<std::string> result;
  for_each_tensor(
      tree, [&](const Tensor&, const Path& path) { result.push_back(path.str()); }, Path(root));
  return result;
}

template <class T>
std::string zip_error(T a, T b) {
  T* const trees[] = {&a, &b};
  try {
    zip_trees(
        Row<T>(trees), [](Row<Tensor>, const Path&) {}, [](auto, const Path&) {}, Path("out"));
  } catch (const ValueError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

template <>
struct tandem::TreeTraits<Foreign> {
  static constexpr bool is_tree = true;
  template <class Q, class F>
  static void children(Row<Q> row, const Path& path, F& f) {
    for (std::size_t k = 0; k < row[0]->tensors.size(); ++k) {
      tree_detail::descend(
          row, path.index(k), f, [k](Q & t, std::size_t) -> auto& { return t.tensors[k]; });
    }
  }
};

TEST_CASE("types that can hold a tensor are trees", "[tree]") {
  STATIC_REQUIRE(is_tree<Tensor>);
  STATIC_REQUIRE(is_tree<const Batch&>);
  STATIC_REQUIRE(is_tree<std::optional<std::vector<std::pair<int, Tensor>>>>);
  STATIC_REQUIRE(is_tree<std::tuple<int, std::array<Tensor, 2>>>);
  STATIC_REQUIRE(is_tree<std::unordered_map<int, Tensor>>);
  STATIC_REQUIRE(!is_tree<std::vector<double>>);
  STATIC_REQUIRE(!is_tree<std::tuple<int, std::string>>);
  STATIC_REQUIRE(!is_tree<std::map<std::string, bool>>);
  STATIC_REQUIRE(std::is_aggregate_v<Batch>);
}

TEST_CASE("a walk meets every tensor in order and can name its place", "[tree]") {
  const Tensor a = tensor({1.0}), b = tensor({2.0}), c = tensor({3.0}), d = tensor({4.0});
  const Batch batch{.image = a, .extra = {{"mask", b}, {"area", c}}};
  const std::tuple tree(batch, 7, std::optional(std::vector{d, Tensor()}), std::pair(a, true));

  CHECK(paths(tree, "args") == std::vector<std::string>{"args[0].image", "args[0].extra[\"area\"]",
                                                        "args[0].extra[\"mask\"]", "args[2][0]", "args[2][1]",
                                                        "args[3].first"});
  CHECK(paths(batch) == std::vector<std::string>{"image", "extra[\"area\"]", "extra[\"mask\"]"});
  CHECK(paths(std::map<int, Tensor>{{-3, a}}) == std::vector<std::string>{"[-3]"});

  const std::vector<Tensor> found = collect_tensors(tree);
  REQUIRE(found.size() == 6);
  CHECK(found[0].is_same(a));
  CHECK(found[1].is_same(c));
  CHECK(found[2].is_same(b));
  CHECK(found[3].is_same(d));
  CHECK(!found[4].defined());
  CHECK(found[5].is_same(a));
  CHECK(collect_tensors(std::string("x")).empty());
}

TEST_CASE("arguments are walked where they are", "[tree]") {
  Tensor x = tensor({1.0});
  Batch batch{.image = x};
  for_each_tensor(std::tie(x, batch), [](Tensor& t) { t = t + 1; });
  CHECK(x.item() == 2);
  CHECK(batch.image.item() == 2);
  CHECK(!batch.image.is_same(x));
}

TEST_CASE("map_tensors replaces tensors and keeps the rest", "[tree]") {
  Batch batch{.image = tensor({1.0}), .extra = {{"mask", tensor({2.0})}}, .weight = 0.5, .untouched = tensor({3.0})};
  const Batch twice = map_tensors(batch, [](const Tensor& t) { return t * 2; });
  CHECK(twice.image.item() == 2);
  CHECK(twice.extra.at("mask").item() == 4);
  CHECK(twice.weight == 0.5);
  CHECK(twice.untouched.is_same(batch.untouched));
  CHECK(batch.image.item() == 1);

  const Branch tree{tensor({1.0}), {{tensor({2.0}), {}}, {tensor({3.0}), {{tensor({4.0}), {}}}}}};
  std::string seen;
  const Branch sum = map_tensors(tree, [&](const Tensor& t, const Path& at) {
    seen += at.str() + " ";
    return t + 10;
  });
  CHECK(seen == "value children[0].value children[1].value children[1].children[0].value ");
  CHECK(sum.children[1].children[0].value.item() == 14);
}

TEST_CASE("trees of one type are walked side by side", "[tree]") {
  using Tree = std::tuple<Batch, std::unordered_map<int, Tensor>, std::vector<int>>;
  std::vector<Tree> trees;
  for (const double k : {1.0, 10.0, 100.0}) {
    trees.push_back({Batch{.image = tensor({k}), .extra = {{"m", tensor({2 * k})}}, .weight = k},
                     {{5, tensor({3 * k})}, {6, tensor({4 * k})}},
                     {1, 2}});
  }
  Tree* const row[] = {&trees[0], &trees[1], &trees[2]};
  double total = 0, weights = 0;
  int lists = 0;
  zip_trees(
      Row<Tree>(row),
      [&](Row<Tensor> t, const Path&) {
        REQUIRE(t.size() == 3);
        CHECK(t[1]->item() == 10 * t[0]->item());
        CHECK(t[2]->item() == 100 * t[0]->item());
        total += t[0]->item();
      },
      [&]<class Leaf>(Row<Leaf> leaves, const Path& at) {
        if constexpr (std::same_as<Leaf, double>) {
          CHECK(at.str() == "[0].weight");
          for (const double* w : leaves) weights += *w;
        } else {
          ++lists;
        }
      });
  CHECK(total == 1 + 2 + 3 + 4);
  CHECK(weights == 111);
  CHECK(lists == 1);
}

TEST_CASE("trees that differ are refused by path", "[tree]") {
  const Tensor t = tensor({1.0});
  using List = std::tuple<std::vector<Tensor>>;
  CHECK(zip_error(List{{t, t}}, List{{t}}) == "trees differ at out[0]: tree 0 has 2 elements, tree 1 has 1 elements");
  CHECK(zip_error(std::optional(t), std::optional<Tensor>()) ==
        "trees differ at out: tree 0 has a value, tree 1 has none");
  using Map = std::map<std::string, Tensor>;
  CHECK(zip_error(Map{{"a", t}}, Map{{"b", t}}) == "trees differ at out[\"a\"]: tree 0 has this key, tree 1 has none");
  CHECK(zip_error(Map{{"a", t}}, Map{{"a", t}, {"b", t}}) ==
        "trees differ at out: tree 0 has 1 keys, tree 1 has 2 keys");
  CHECK(zip_error(Map{{"a", t}}, Map{{"a", t}}).empty());
}

TEST_CASE("a type can be made a tree from outside", "[tree]") {
  const Foreign f{{tensor({1.0}), tensor({2.0})}};
  CHECK(paths(std::vector{f, f}) == std::vector<std::string>{"[0][0]", "[0][1]", "[1][0]", "[1][1]"});
}
