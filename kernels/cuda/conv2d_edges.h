#pragma once
// What both ways to convolve have in common: the bias, and convolutions of nothing.

#include "cuda_backend.h"

namespace tandem::kernels::cuda {

/// A bias (co) seen as (1, co, 1, 1).
struct ChannelBias {
  explicit ChannelBias(const View& bias)
      : shape{1, bias.shape[0], 1, 1}, strides{0, 1, 0, 0}, view{bias.data, shape, strides, 4, bias.dtype} {}
  ChannelBias(const ChannelBias&) = delete;
  ChannelBias& operator=(const ChannelBias&) = delete;
  std::int64_t shape[4], strides[4];
  View view;
};

/// Whether there is nothing to multiply; `out` then has its value: zero, or the bias, if one is given.
inline bool conv2d_is_empty(const Backend& backend, Stream& stream, const View& out, const View& a, const View& b,
                            const View* bias = nullptr) {
  if (out.numel() != 0 && a.numel() != 0 && b.numel() != 0) return false;
  if (out.numel() == 0) return true;
  if (bias != nullptr && bias->data != nullptr) {
    backend.copy(stream, out, ChannelBias(*bias).view);
  } else {
    backend.fill(stream, out, 0);
  }
  return true;
}

inline void conv2d_add_bias(const Backend& backend, Stream& stream, const View& y, const View& bias) {
  if (bias.data != nullptr) backend.binary(stream, BinaryOp::Add, y, y, ChannelBias(bias).view);
}

}  // namespace tandem::kernels::cuda
