// Convolutions as matrix products over blocks of unfolded input ("im2col") that stay in cache.
//
// A block is some rows of one output image, or several small images side by side. Blocks depend on the shapes alone,
// and so do the partial sums of weight gradients, so that results do not depend on threads.

#include <algorithm>
#include <cstring>

#include "cpu_backend.h"
#include "gemm.h"
#include "parallel.h"

namespace tandem::kernels::cpu {
namespace {

using Index = std::int64_t;

constexpr Index kBlockBytes = 256 * 1024;     // of unfolded input
constexpr Index kWideEnough = 128;            // columns that make a product efficient
constexpr Index kPartialBytes = 4096 * 1024;  // of all partial weight gradients
constexpr Index kTasks = 16;

Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
Index round_up(Index a, Index b) { return ceil_div(a, b) * b; }

/// One convolution, and how it is cut into blocks. Sizes "per group" are ci, co and k.
struct Plan {
  Plan(const View& x, const View& weight, const View& y, const Conv2dArgs& a, Index element_bytes)
      : args(a),
        n(x.shape[0]),
        ci(weight.shape[1]),
        h(x.shape[2]),
        w(x.shape[3]),
        co(weight.shape[0] / a.groups),
        kh(weight.shape[2]),
        kw(weight.shape[3]),
        oh(y.shape[2]),
        ow(y.shape[3]),
        plane(oh * ow),
        k(ci * kh * kw) {
    const bool pointwise =
        kh == 1 && kw == 1 && a.stride[0] == 1 && a.stride[1] == 1 && a.padding[0] == 0 && a.padding[1] == 0;
    same_width = a.stride[0] == 1 && a.stride[1] == 1 && ow == w;
    const Index row_bytes = std::max<Index>(1, k * ow * element_bytes);
    const Index max_rows = std::max<Index>(1, kBlockBytes / row_bytes);
    unfolded = !pointwise || plane < kWideEnough / 2;
    rows = unfolded ? std::clamp<Index>(max_rows, 1, std::max<Index>(1, oh)) : oh;
    if (unfolded && plane > 0 && plane < kWideEnough / 2) {
      images = std::min({ceil_div(kWideEnough, plane), max_rows / std::max<Index>(1, oh), n});
      images = std::max<Index>(1, images);
    }
    image_blocks = ceil_div(n, images);
    row_blocks = rows > 0 ? ceil_div(oh, rows) : 0;

    const Index weight_bytes = std::max<Index>(1, a.groups * co * k * element_bytes);
    sums = std::clamp<Index>(std::min(image_blocks, kPartialBytes / weight_bytes), 1, kTasks);
    channels = std::max<Index>({1, std::min<Index>(ci, 16), ceil_div(ci * sums * a.groups, kTasks)});
    channel_blocks = ceil_div(ci, channels);

    col_size = unfolded ? round_up(k * images * rows * ow, 16) : 0;
    side_size = images > 1 ? round_up(co * images * plane, 16) : 0;
    sums_size = sums > 1 ? round_up(sums * a.groups * co * k, 16) : 0;
  }

  Conv2dArgs args;
  Index n, ci, h, w, co, kh, kw, oh, ow, plane, k;
  bool same_width;                       // rows of input and output have one length, and the stride is 1
  bool unfolded;                         // false: the input itself is the matrix
  Index images = 1, rows;                // of a block
  Index image_blocks, row_blocks;        // images / rows of all
  Index sums;                            // partial weight gradients, each over some of the image blocks
  Index channels, channel_blocks;        // input channels of a task of conv2d_weight
  Index col_size, side_size, sums_size;  // elements of workspace: the first two per thread
};

/// A part of the images and of the rows of an output, as columns of a matrix: image after image, row after row.
struct Block {
  Block(const Plan& p, Index image_block, Index row_block)
      : image(image_block * p.images),
        images(std::min(p.images, p.n - image)),
        row(row_block * p.rows),
        rows(std::min(p.rows, p.oh - row)),
        cols(images * rows * p.ow) {}
  Index image, images, row, rows, cols;
};

/// The output columns [begin, end) whose input column `first + j * stride` lies in [0, size).
struct Range {
  Range(Index first, Index stride, Index size, Index count) {
    begin = std::min(count, first >= 0 ? 0 : ceil_div(-first, stride));
    end = first >= size ? 0 : std::min(count, ceil_div(size - first, stride));
    end = std::max(begin, end);
  }
  Index begin, end;
};

/// As memcpy, for runs so short that a call would cost more than the copy.
template <class T>
void copy_run(T* out, const T* in, Index n) {
  constexpr Index lanes = 16 / sizeof(T);
  if (n < lanes) {
    for (Index i = 0; i < n; ++i) out[i] = in[i];
  } else if (n > 64) {
    std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(T));
  } else {
    for (Index i = 0; i + lanes <= n; i += lanes) std::memcpy(out + i, in + i, 16);
    std::memcpy(out + n - lanes, in + n - lanes, 16);
  }
}

/// Where a line of unfolded input, shifted by (dy, dx), lies in an input of its own width: all its rows that exist are
/// one run of the input, but for the columns where it would run over the side.
struct SameWidth {
  SameWidth(const Plan& p, Index row, Index rows, Index dy, Index dx) : dy_(row + dy), dx_(dx), w_(p.w) {
    first_row = std::clamp<Index>(-dy_, 0, rows);
    last_row = std::clamp<Index>(p.h - dy_, first_row, rows);
    begin = first_row * w_;
    end = last_row * w_;
    // The run may not start before the input, nor end after it.
    begin = std::min(end, std::max(begin, -(dy_ * w_ + dx)));
    end = std::max(begin, std::min(end, p.h * w_ - (dy_ * w_ + dx)));
    side_begin = dx < 0 ? 0 : std::max<Index>(0, w_ - dx);
    side_end = dx < 0 ? std::min(w_, -dx) : w_;
  }
  Index shift() const { return dy_ * w_ + dx_; }
  /// Zeros the columns over the side.
  template <class T>
  void clear_side(T* line) const {
    if (side_begin == side_end) return;
    for (Index r = first_row; r < last_row; ++r) {
      for (Index q = side_begin; q < side_end; ++q) line[r * w_ + q] = T(0);
    }
  }
  Index first_row, last_row, begin, end, side_begin, side_end;

 private:
  Index dy_, dx_, w_;
};

/// Rows [row, row + rows) of one image, unfolded: line (c, i, j) of `col` is the input shifted by the place of kernel
/// element (i, j). Lines are `ld` apart; `x` is the first of `channels` planes.
template <class T>
void unfold(const Plan& p, const T* x, Index channels, Index row, Index rows, T* col, Index ld) {
  const Conv2dArgs& a = p.args;
  for (Index c = 0; c < channels; ++c, x += p.h * p.w) {
    for (Index i = 0; i < p.kh; ++i) {
      for (Index j = 0; j < p.kw; ++j, col += ld) {
        const Index dy = i * a.dilation[0] - a.padding[0], dx = j * a.dilation[1] - a.padding[1];
        if (p.same_width) {
          const SameWidth s(p, row, rows, dy, dx);
          std::fill(col, col + s.begin, T(0));
          copy_run(col + s.begin, x + s.begin + s.shift(), s.end - s.begin);
          std::fill(col + s.end, col + rows * p.ow, T(0));
          s.clear_side(col);
          continue;
        }
        const Range in(dx, a.stride[1], p.w, p.ow);
        for (Index r = 0; r < rows; ++r) {
          T* line = col + r * p.ow;
          const Index y = (row + r) * a.stride[0] + dy;
          if (y < 0 || y >= p.h) {
            std::fill_n(line, p.ow, T(0));
            continue;
          }
          for (Index q = 0; q < in.begin; ++q) line[q] = T(0);
          const T* source = x + y * p.w + dx;
          if (a.stride[1] == 1) {
            copy_run(line + in.begin, source + in.begin, in.end - in.begin);
          } else {
            for (Index q = in.begin; q < in.end; ++q) line[q] = source[q * a.stride[1]];
          }
          for (Index q = in.end; q < p.ow; ++q) line[q] = T(0);
        }
      }
    }
  }
}

/// The transpose of unfold: adds each element of `col`, which it may spoil, to the input element it came from.
template <class T>
void fold(const Plan& p, T* x, Index channels, Index row, Index rows, T* col, Index ld) {
  const Conv2dArgs& a = p.args;
  for (Index c = 0; c < channels; ++c, x += p.h * p.w) {
    for (Index i = 0; i < p.kh; ++i) {
      for (Index j = 0; j < p.kw; ++j, col += ld) {
        const Index dy = i * a.dilation[0] - a.padding[0], dx = j * a.dilation[1] - a.padding[1];
        if (p.same_width) {
          const SameWidth s(p, row, rows, dy, dx);
          s.clear_side(col);
          T* sink = x + s.shift();
          for (Index q = s.begin; q < s.end; ++q) sink[q] += col[q];
          continue;
        }
        const Range in(dx, a.stride[1], p.w, p.ow);
        for (Index r = 0; r < rows; ++r) {
          const Index y = (row + r) * a.stride[0] + dy;
          if (y < 0 || y >= p.h) continue;
          const T* line = col + r * p.ow;
          T* sink = x + y * p.w + dx;
          if (a.stride[1] == 1) {
            for (Index q = in.begin; q < in.end; ++q) sink[q] += line[q];
          } else {
            for (Index q = in.begin; q < in.end; ++q) sink[q * a.stride[1]] += line[q];
          }
        }
      }
    }
  }
}

/// Block `b` of input channels [c0, c0 + channels) of a group as a matrix, unfolded into `col` where that is needed.
template <class T>
Matrix<T> block_of_input(const Plan& p, const Block& b, const T* x, Index group, Index c0, Index channels, T* col) {
  const Index image_size = p.args.groups * p.ci * p.h * p.w;
  const T* first = x + b.image * image_size + (group * p.ci + c0) * p.h * p.w;
  if (!p.unfolded) return {first, p.plane};
  for (Index i = 0; i < b.images; ++i) {
    unfold(p, first + i * image_size, channels, b.row, b.rows, col + i * p.plane, b.cols);
  }
  return {col, b.cols};
}

/// Block `b` of an output gradient as a matrix: in place, or gathered into `side` where it holds several images.
template <class T>
Matrix<T> block_of_output(const Plan& p, const Block& b, const T* gy, Index group, T* side) {
  const Index image_size = p.args.groups * p.co * p.plane;
  const T* first = gy + b.image * image_size + group * p.co * p.plane;
  if (p.images == 1) return {first + b.row * p.ow, p.plane};
  for (Index o = 0; o < p.co; ++o) {
    for (Index i = 0; i < b.images; ++i) {
      copy_run(side + o * b.cols + i * p.plane, first + i * image_size + o * p.plane, p.plane);
    }
  }
  return {side, b.cols};
}

/// Calls f(task, col, side) for every task, with the workspace of the thread that runs it.
template <class T, class F>
void for_each_task(const Stream& stream, const Plan& p, Index tasks, T* workspace, F&& f) {
  const Index parts = std::min<Index>(tasks, std::max(1, stream.threads));
  parallel_for(stream, parts, 1, [&](Index begin, Index end) {
    for (Index part = begin; part < end; ++part) {
      T* col = workspace + part * (p.col_size + p.side_size);
      for (Index t = tasks * part / parts; t < tasks * (part + 1) / parts; ++t) f(t, col, col + p.col_size);
    }
  });
}

template <class T>
void forward(const Stream& stream, const Plan& p, T* y, const T* x, const T* w, const T* bias, T* workspace) {
  const Index groups = p.args.groups;
  const Index tasks = p.image_blocks * groups * p.row_blocks;
  for_each_task(stream, p, tasks, workspace, [&](Index task, T* col, T* side) {
    const Index group = task / p.row_blocks % groups;
    const Block b(p, task / p.row_blocks / groups, task % p.row_blocks);
    const Matrix<T> input = block_of_input(p, b, x, group, 0, p.ci, col);
    const Matrix<T> weights{w + group * p.co * p.k, p.k};
    const T* shift = bias == nullptr ? nullptr : bias + group * p.co;
    T* out = y + (b.image * groups + group) * p.co * p.plane;
    if (p.images == 1) {
      out += b.row * p.ow;
      for (Index o = 0; shift != nullptr && o < p.co; ++o) std::fill_n(out + o * p.plane, b.cols, shift[o]);
      gemm_serial(p.co, b.cols, p.k, weights, input, shift == nullptr ? T(0) : T(1), out, p.plane);
      return;
    }
    for (Index o = 0; shift != nullptr && o < p.co; ++o) std::fill_n(side + o * b.cols, b.cols, shift[o]);
    gemm_serial(p.co, b.cols, p.k, weights, input, shift == nullptr ? T(0) : T(1), side, b.cols);
    for (Index i = 0; i < b.images; ++i, out += groups * p.co * p.plane) {
      for (Index o = 0; o < p.co; ++o) copy_run(out + o * p.plane, side + o * b.cols + i * p.plane, p.plane);
    }
  });
}

template <class T>
void backward_input(const Stream& stream, const Plan& p, T* gx, const T* gy, const T* w, T* workspace) {
  const Index groups = p.args.groups;
  const Index image_size = groups * p.ci * p.h * p.w;
  for_each_task(stream, p, p.image_blocks * groups, workspace, [&](Index task, T* col, T* side) {
    const Index group = task % groups;
    const Matrix<T> weights{w + group * p.co * p.k, p.k, true};
    T* first = gx + task / groups * p.images * image_size + group * p.ci * p.h * p.w;
    if (!p.unfolded) {
      const Block b(p, task / groups, 0);
      gemm_serial(p.k, b.cols, p.co, weights, block_of_output(p, b, gy, group, side), T(0), first, p.plane);
      return;
    }
    const Index images = Block(p, task / groups, 0).images;
    for (Index i = 0; i < images; ++i) std::fill_n(first + i * image_size, p.ci * p.h * p.w, T(0));
    for (Index row_block = 0; row_block < p.row_blocks; ++row_block) {
      const Block b(p, task / groups, row_block);
      gemm_serial(p.k, b.cols, p.co, weights, block_of_output(p, b, gy, group, side), T(0), col, b.cols);
      for (Index i = 0; i < b.images; ++i) {
        fold(p, first + i * image_size, p.ci, b.row, b.rows, col + i * p.plane, b.cols);
      }
    }
  });
}

template <class T>
void backward_weight(const Stream& stream, const Plan& p, T* gw, const T* gy, const T* x, T* workspace) {
  const Index groups = p.args.groups;
  const Index size = groups * p.co * p.k;
  T* sums = p.sums > 1 ? workspace : gw;
  for_each_task(stream, p, p.sums * groups * p.channel_blocks, workspace + p.sums_size,
                [&](Index task, T* col, T* side) {
                  const Index c0 = task % p.channel_blocks * p.channels;
                  const Index channels = std::min(p.channels, p.ci - c0);
                  const Index group = task / p.channel_blocks % groups;
                  const Index sum = task / p.channel_blocks / groups;
                  const Index k = channels * p.kh * p.kw;
                  T* out = sums + sum * size + group * p.co * p.k + c0 * p.kh * p.kw;
                  T beta = 0;
                  for (Index i = p.image_blocks * sum / p.sums; i < p.image_blocks * (sum + 1) / p.sums; ++i) {
                    for (Index r = 0; r < p.row_blocks; ++r) {
                      const Block b(p, i, r);
                      Matrix<T> input = block_of_input(p, b, x, group, c0, channels, col);
                      input.transposed = true;
                      gemm_serial(p.co, k, b.cols, block_of_output(p, b, gy, group, side), input, beta, out, p.k);
                      beta = 1;
                    }
                  }
                  if (beta == T(0)) scale_matrix(p.co, k, beta, out, p.k);
                });
  if (p.sums == 1) return;
  parallel_for(stream, size, 1 << 14, [&](Index begin, Index end) {
    std::copy(sums + begin, sums + end, gw + begin);
    for (Index s = 1; s < p.sums; ++s) {
      for (Index i = begin; i < end; ++i) gw[i] += sums[s * size + i];
    }
  });
}

}  // namespace

std::int64_t CpuBackend::conv2d_workspace(Stream& stream, const View& x, const View& w, const View& y,
                                          const Conv2dArgs& args) const {
  const Index bytes = static_cast<Index>(size_of(x.dtype));
  const Plan p(x, w, y, args, bytes);
  return bytes * (p.sums_size + std::max(1, stream.threads) * (p.col_size + p.side_size));
}

void CpuBackend::conv2d(Stream& stream, const View& y, const View& x, const View& w, const View& bias,
                        const Conv2dArgs& args, void* workspace) const {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Plan p(x, w, y, args, sizeof(T));
    forward(stream, p, y.as<T>(), x.as<const T>(), w.as<const T>(), bias.as<const T>(), static_cast<T*>(workspace));
  });
}

void CpuBackend::conv2d_input(Stream& stream, const View& gx, const View& gy, const View& w, const Conv2dArgs& args,
                              void* workspace) const {
  visit_floating(gx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Plan p(gx, w, gy, args, sizeof(T));
    backward_input(stream, p, gx.as<T>(), gy.as<const T>(), w.as<const T>(), static_cast<T*>(workspace));
  });
}

void CpuBackend::conv2d_weight(Stream& stream, const View& gw, const View& gy, const View& x, const Conv2dArgs& args,
                               void* workspace) const {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Plan p(x, gw, gy, args, sizeof(T));
    backward_weight(stream, p, gw.as<T>(), gy.as<const T>(), x.as<const T>(), static_cast<T*>(workspace));
  });
}

}  // namespace tandem::kernels::cpu
