#pragma once
// Sequential: modules in a row.
//
//     nn::Sequential net{nn::Linear{4, 8}, nn::ReLU{}, nn::Linear{8, 2}};

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

#include "module.h"

namespace tandem::nn {

/// Each module is called on the result of the one before, the first on the arguments. State-dict names are "0.weight",
/// "2.weight". The modules are reached by get<0>() or std::get<0>(layers).
template <std::derived_from<Module>... Ms>
struct Sequential : Module {
  explicit Sequential(Ms... modules) : layers(std::move(modules)...) {}

  template <class... Args>
  auto forward(Args&&... args) {
    return run<0>(std::forward<Args>(args)...);
  }

  template <std::size_t I>
  auto& get() {
    return std::get<I>(layers);
  }

  const char* type_name() const override { return "Sequential"; }
  void visit_fields(FieldVisitor& visitor) override {
    std::apply(
        [&visitor](auto&... layer) {
          std::size_t i = 0;
          (visit_field(visitor, std::to_string(i++), layer), ...);
        },
        layers);
  }
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return call(*this, std::forward<Args>(args)...);
  }

  std::tuple<Ms...> layers;

 private:
  template <std::size_t I, class... Args>
  auto run(Args&&... args) {
    if constexpr (I == sizeof...(Ms)) {
      return (std::forward<Args>(args), ...);
    } else {
      return run<I + 1>(get<I>()(std::forward<Args>(args)...));
    }
  }
};

}  // namespace tandem::nn
