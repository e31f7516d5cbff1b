// Reductions over any dimensions. Work is cut into pieces that depend on the shape only, and pieces are combined in
// order, so the result is the same for every number of threads.

#include "../math/reduce.h"

#include "../reduce_plan.h"
#include "cpu_backend.h"
#include "isa.h"
#include "parallel.h"
#include "rows.h"

namespace tandem::kernels::cpu {
namespace {

/// Columns that are accumulated together, and accumulators of one result's pieces.
constexpr std::int64_t kStrip = 512;
constexpr std::int64_t kPartials = 4096;

/// With that many results there is enough to do in parallel without cutting up single ones.
constexpr std::int64_t kManyResults = 32;

template <class Op, class T>
struct ReduceKernels {
  using A = typename Op::template Accumulator<T>;
  /// The reduction of n elements.
  A (*line)(const T* in, std::int64_t step, std::int64_t n);
  /// Combines each of `width` accumulators with the `rows` elements below it.
  void (*columns)(A* sums, std::int64_t width, const T* in, std::int64_t step, std::int64_t row_step,
                  std::int64_t rows);
};

template <class Op, class T>
struct ReduceIndexKernels {
  /// The first place of the extreme among n >= 1 elements.
  std::int64_t (*line)(const T* in, std::int64_t step, std::int64_t n);
  /// The same in each of `width` columns, with the extremes.
  void (*columns)(T* best, std::int64_t* places, std::int64_t width, const T* in, std::int64_t step,
                  std::int64_t row_step, std::int64_t rows);
};

}  // namespace
}  // namespace tandem::kernels::cpu

#define TANDEM_ISA_SOURCE "reduce.inl"
#include "each_isa.h"

namespace tandem::kernels::cpu {
namespace {

std::int64_t pieces_of(std::int64_t results, std::int64_t work, std::int64_t most) {
  std::int64_t pieces = (work + kGrain - 1) / kGrain;
  if (results >= kManyResults || pieces < 2) return 1;
  return pieces < most ? pieces : most;
}

/// Calls f(piece, begin, end) for equal pieces of [0, n), in parallel.
template <class F>
void for_each_piece(const Stream& stream, std::int64_t n, std::int64_t pieces, const F& f) {
  const std::int64_t size = (n + pieces - 1) / pieces;
  parallel_for(stream, pieces, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t piece = first; piece < last; ++piece) {
      const std::int64_t begin = piece * size < n ? piece * size : n;
      f(piece, begin, n - begin < size ? n : begin + size);
    }
  });
}

/// The walk over results by strips of adjacent columns: dimension 0 of the plan steps from strip to strip.
template <int N>
ElementwisePlan<N> strips_of(const ElementwisePlan<N>& kept) {
  ElementwisePlan<N> strips = kept;
  strips.shape[0] = (kept.shape[0] + kStrip - 1) / kStrip;
  for (std::int64_t& stride : strips.strides[0]) stride *= kStrip;
  strips.numel = kept.numel / kept.shape[0] * strips.shape[0];
  return strips;
}
std::int64_t strip_width(std::int64_t columns, std::int64_t strip) {
  return columns - strip * kStrip < kStrip ? columns - strip * kStrip : kStrip;
}

template <class Op, class T>
class Reduction {
 public:
  using A = typename Op::template Accumulator<T>;
  using R = typename Op::template Result<T>;

  Reduction(const Stream& stream, const View& out, const View& in)
      : stream_(stream), plan_(plan_reduce(in, out)), in_(in.as<T>()), out_(out.as<R>()) {
    TANDEM_ISA_CALL(find_reduce, kernels_);
  }

  void run() const {
    if (plan_.kept.numel == 0) return;
    if (plan_.by_columns()) {
      run_columns();
    } else {
      run_lines();
    }
  }

 private:
  /// The reduction of terms begin <= i < end of the result whose terms start at `in`.
  A line(const T* in, std::int64_t begin, std::int64_t end) const {
    const std::int64_t step = plan_.reduced.strides[0][0];
    if (plan_.reduced.ndim == 1) return kernels_.line(in + begin * step, step, end - begin);
    A sum = Op::template start<T>();
    for_each_row(plan_.reduced, begin, end, [&](const std::int64_t(&offset)[1], std::int64_t n) {
      sum = Op::combine(sum, kernels_.line(in + offset[0], step, n));
    });
    return sum;
  }

  void run_lines() const {
    const std::int64_t terms = plan_.reduced.numel, in_step = plan_.kept.strides[0][0];
    const std::int64_t out_step = plan_.kept.strides[0][1];
    constexpr std::int64_t most = 256;
    const std::int64_t pieces = pieces_of(plan_.kept.numel, terms, most);
    const std::int64_t grain = pieces > 1 ? plan_.kept.numel : kGrain / (terms + 1) + 1;
    parallel_for(stream_, plan_.kept.numel, grain, [&](std::int64_t first, std::int64_t last) {
      for_each_row(plan_.kept, first, last, [&](const std::int64_t(&offsets)[2], std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) {
          const T* in = in_ + offsets[0] + i * in_step;
          A sum;
          if (pieces == 1) {
            sum = line(in, 0, terms);
          } else {
            A partials[most];
            for_each_piece(stream_, terms, pieces, [&](std::int64_t piece, std::int64_t begin, std::int64_t end) {
              partials[piece] = line(in, begin, end);
            });
            sum = partials[0];
            for (std::int64_t p = 1; p < pieces; ++p) sum = Op::combine(sum, partials[p]);
          }
          out_[offsets[1] + i * out_step] = static_cast<R>(sum);
        }
      });
    });
  }

  void add_columns(A* sums, std::int64_t width, const T* in, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t j = 0; j < width; ++j) sums[j] = Op::template start<T>();
    for_each_row(plan_.reduced, begin, end, [&](const std::int64_t(&offset)[1], std::int64_t n) {
      kernels_.columns(sums, width, in + offset[0], plan_.kept.strides[0][0], plan_.reduced.strides[0][0], n);
    });
  }

  void run_columns() const {
    const ElementwisePlan<2> strips = strips_of(plan_.kept);
    const std::int64_t columns = plan_.kept.shape[0], terms = plan_.reduced.numel;
    const std::int64_t width = columns < kStrip ? columns : kStrip;
    const std::int64_t fit = kPartials / width;
    const std::int64_t pieces = pieces_of(strips.numel, terms * width, fit < kManyResults ? fit : kManyResults);
    const std::int64_t grain = pieces > 1 ? strips.numel : kGrain / (terms * width + 1) + 1;
    parallel_for(stream_, strips.numel, grain, [&](std::int64_t first, std::int64_t last) {
      std::int64_t strip = first % strips.shape[0];
      for_each_row(strips, first, last, [&](const std::int64_t(&offsets)[2], std::int64_t n) {
        for (std::int64_t s = 0; s < n; ++s) {
          reduce_strip(in_ + offsets[0] + s * strips.strides[0][0], out_ + offsets[1] + s * strips.strides[0][1],
                       strip_width(columns, strip), pieces);
          strip = strip + 1 == strips.shape[0] ? 0 : strip + 1;
        }
      });
    });
  }

  void reduce_strip(const T* in, R* out, std::int64_t width, std::int64_t pieces) const {
    A sums[kPartials];
    const std::int64_t terms = plan_.reduced.numel;
    if (pieces == 1) {
      add_columns(sums, width, in, 0, terms);
    } else {
      for_each_piece(stream_, terms, pieces, [&](std::int64_t piece, std::int64_t begin, std::int64_t end) {
        add_columns(sums + piece * width, width, in, begin, end);
      });
      for (std::int64_t p = 1; p < pieces; ++p) {
        for (std::int64_t j = 0; j < width; ++j) sums[j] = Op::combine(sums[j], sums[p * width + j]);
      }
    }
    const std::int64_t step = plan_.kept.strides[0][1];
    for (std::int64_t j = 0; j < width; ++j) out[j * step] = static_cast<R>(sums[j]);
  }

  const Stream& stream_;
  ReducePlan<1> plan_;
  ReduceKernels<Op, T> kernels_;
  const T* in_;
  R* out_;
};

template <class Op, class T>
void reduce_index_of(const Stream& stream, const View& values, const View& indices, const View& in) {
  ReduceIndexKernels<Op, T> kernels;
  TANDEM_ISA_CALL(find_reduce_index, kernels);
  const ReducePlan<2> plan = plan_reduce(in, values, indices);
  const std::int64_t terms = plan.reduced.numel, term_step = plan.reduced.strides[0][0];
  if (plan.kept.numel == 0 || terms == 0) return;
  const std::int64_t(&steps)[3] = plan.kept.strides[0];
  auto in_at = [&](std::int64_t offset) { return in.as<T>() + offset; };
  if (!plan.by_columns()) {
    parallel_for(stream, plan.kept.numel, kGrain / terms + 1, [&](std::int64_t first, std::int64_t last) {
      for_each_row(plan.kept, first, last, [&](const std::int64_t(&offsets)[3], std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) {
          const T* line = in_at(offsets[0] + i * steps[0]);
          const std::int64_t place = kernels.line(line, term_step, terms);
          values.as<T>()[offsets[1] + i * steps[1]] = line[place * term_step];
          indices.as<std::int64_t>()[offsets[2] + i * steps[2]] = place;
        }
      });
    });
    return;
  }
  const ElementwisePlan<3> strips = strips_of(plan.kept);
  const std::int64_t columns = plan.kept.shape[0];
  const std::int64_t grain = kGrain / (terms * (columns < kStrip ? columns : kStrip)) + 1;
  parallel_for(stream, strips.numel, grain, [&](std::int64_t first, std::int64_t last) {
    std::int64_t strip = first % strips.shape[0];
    for_each_row(strips, first, last, [&](const std::int64_t(&offsets)[3], std::int64_t n) {
      for (std::int64_t s = 0; s < n; ++s) {
        T best[kStrip];
        std::int64_t places[kStrip];
        const std::int64_t width = strip_width(columns, strip);
        kernels.columns(best, places, width, in_at(offsets[0] + s * strips.strides[0][0]), steps[0], term_step, terms);
        T* value = values.as<T>() + offsets[1] + s * strips.strides[0][1];
        std::int64_t* index = indices.as<std::int64_t>() + offsets[2] + s * strips.strides[0][2];
        for (std::int64_t j = 0; j < width; ++j) value[j * steps[1]] = best[j];
        for (std::int64_t j = 0; j < width; ++j) index[j * steps[2]] = places[j];
        strip = strip + 1 == strips.shape[0] ? 0 : strip + 1;
      }
    });
  });
}

/// visit_dtype with bool taken as uint8, whose order and sums are the same.
template <class F>
void visit_ordered(DType dtype, const F& f) {
  visit_dtype(dtype == kBool ? kUInt8 : dtype, [&](auto tag) {
    if constexpr (!std::is_same_v<typename decltype(tag)::type, bool>) f(tag);
  });
}

}  // namespace

void CpuBackend::reduce(Stream& stream, ReduceOp op, const View& out, const View& in) const {
  visit_ordered(in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (op) {
      case ReduceOp::Sum: return Reduction<SumOf, T>(stream, out, in).run();
      case ReduceOp::Max: return Reduction<MaxOf, T>(stream, out, in).run();
      case ReduceOp::Min: return Reduction<MinOf, T>(stream, out, in).run();
    }
  });
}

void CpuBackend::reduce_index(Stream& stream, ReduceOp op, const View& values, const View& indices, const View& in,
                              int) const {
  visit_ordered(in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (op == ReduceOp::Max) {
      reduce_index_of<MaxOf, T>(stream, values, indices, in);
    } else {
      reduce_index_of<MinOf, T>(stream, values, indices, in);
    }
  });
}

}  // namespace tandem::kernels::cpu
