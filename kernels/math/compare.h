#pragma once
// The formulas of TANDEM_COMPARE_OPS. With NaN only Ne is true.

#include "hd.h"

namespace tandem::kernels {

struct Eq {
  template <class T>
  static TANDEM_HD bool forward(T a, T b) {
    return a == b;
  }
};

struct Ne {
  template <class T>
  static TANDEM_HD bool forward(T a, T b) {
    return a != b;
  }
};

struct Lt {
  template <class T>
  static TANDEM_HD bool forward(T a, T b) {
    return a < b;
  }
};

struct Le {
  template <class T>
  static TANDEM_HD bool forward(T a, T b) {
    return a <= b;
  }
};

struct Gt {
  template <class T>
  static TANDEM_HD bool forward(T a, T b) {
    return a > b;
  }
};

struct Ge {
  template <class T>
  static TANDEM_HD bool forward(T a, T b) {
    return a >= b;
  }
};

}  // namespace tandem::kernels
