#pragma once
// Unfolding images into the columns of a matrix, and its transpose, for convolutions as matrix products. For host code.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../dtype.h"

namespace tandem::kernels::cuda {

/// Some images of one group, and where their columns lie. Strides are in elements.
///
/// Planes (h, w) of channel c of image i start at x[i * image_stride + c * h * w]. Element (c, ki, kj), (p, q) of the
/// columns of image i is at columns[i * column_image_stride + ((c * kh + ki) * kw + kj) * column_row_stride + p * ow +
/// q]. So column_row_stride = oh * ow makes one matrix (channels * kh * kw, oh * ow) per image, for a batched product,
/// and column_row_stride = images * oh * ow with column_image_stride = oh * ow makes one matrix of all images side by
/// side.
struct ConvGeometry {
  std::int64_t images = 0, channels = 0;
  std::int64_t h = 0, w = 0, kh = 0, kw = 0, oh = 0, ow = 0;
  std::int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
  std::int64_t image_stride = 0;
  std::int64_t column_image_stride = 0, column_row_stride = 0;
};

/// columns[(c, ki, kj), (p, q)] = x[c, p * stride + ki * dilation - padding, ...], or zero in the padding. Floating.
void im2col(cudaStream_t stream, const ConvGeometry& geometry, const void* x, void* columns, DType dtype);

/// The transpose: every element of x becomes the sum of the columns' elements that im2col would make from it, in
/// ascending order of (ki, kj). What x held before is lost.
void col2im(cudaStream_t stream, const ConvGeometry& geometry, const void* columns, void* x, DType dtype);

}  // namespace tandem::kernels::cuda
