// Loops of random.cpp, compiled per instruction set.

/// Blocks that are drawn at a time.
constexpr std::int64_t kBlocks = 64;
constexpr std::int64_t kWords = 4 * kBlocks;

void draw_words(const PhiloxState& state, std::int64_t first_block, std::int64_t blocks, std::uint32_t* words) {
  const std::uint64_t first = state.offset + static_cast<std::uint64_t>(first_block);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const PhiloxBlock block = philox(state.seed, state.stream, first + static_cast<std::uint64_t>(b));
    for (int k = 0; k < 4; ++k) words[4 * b + k] = block.word[k];
  }
}

/// Calls f(words, skip, first element, number of elements) until n elements are drawn, `per_block` from each block. The
/// words make `skip` elements before the first.
template <class F>
void draw(const Stream& stream, const PhiloxState& state, std::int64_t n, std::int64_t per_block, const F& f) {
  const std::int64_t per_batch = per_block * kBlocks, made = state.skip + n;
  const std::int64_t batches = (made + per_batch - 1) / per_batch;
  parallel_for(stream, batches, kGrain / kWords, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t batch = begin; batch < end; ++batch) {
      std::uint32_t words[kWords];
      const std::int64_t start = batch * per_batch, skip = batch == 0 ? state.skip : 0;
      const std::int64_t stop = made - start < per_batch ? made - start : per_batch;
      draw_words(state, batch * kBlocks, (stop + per_block - 1) / per_block, words);
      f(words, skip, start + skip - state.skip, stop - skip);
    }
  });
}

/// How many elements of type T a block makes, and the bits of the i-th.
template <class T>
constexpr std::int64_t kPerBlock = 16 / sizeof(T);
template <class T>
TANDEM_HD RandomBits<T> bits_at(const std::uint32_t* words, std::int64_t i) {
  if constexpr (std::is_same_v<T, float>) {
    return words[i];
  } else {
    return join_words(words[2 * i], words[2 * i + 1]);
  }
}

template <class T>
void uniform(const Stream& stream, T* out, std::int64_t n, const PhiloxState& state, T lo, T hi) {
  draw(stream, state, n, kPerBlock<T>,
       [=](const std::uint32_t* words, std::int64_t skip, std::int64_t first, std::int64_t count) {
         for (std::int64_t i = 0; i < count; ++i)
           out[first + i] = uniform_between<T>(bits_at<T>(words, skip + i), lo, hi);
       });
}

template <class T>
void normal(const Stream& stream, T* out, std::int64_t n, const PhiloxState& state, T mean, T std) {
  draw(stream, state, n, kPerBlock<T>,
       [=](const std::uint32_t* words, std::int64_t skip, std::int64_t first, std::int64_t count) {
         T values[kWords];
         for (std::int64_t i = 0; 2 * i < skip + count; ++i) {
           const NormalPair<T> pair = normal_pair<T>(bits_at<T>(words, 2 * i), bits_at<T>(words, 2 * i + 1));
           values[2 * i] = mean + std * pair.first;
           values[2 * i + 1] = mean + std * pair.second;
         }
         for (std::int64_t i = 0; i < count; ++i) out[first + i] = values[skip + i];
       });
}

template <class T>
void randint(const Stream& stream, T* out, std::int64_t n, const PhiloxState& state, std::int64_t lo, std::int64_t hi) {
  draw(stream, state, n, 2, [=](const std::uint32_t* words, std::int64_t skip, std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[first + i] = math::convert<T>(integer_between(bits_at<double>(words, skip + i), lo, hi));
    }
  });
}

template <class T>
[[gnu::noinline]] void dropout_batch(const std::uint32_t* words, std::int64_t n, std::uint32_t threshold,
                                     std::uint8_t keep, T scale, const T* in, std::uint8_t* mask, T* out) {
  TANDEM_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    const bool kept = words[i] >= threshold;
    const T x = in[i] * scale;
    mask[i] = kept ? keep : std::uint8_t{0};
    out[i] = kept ? x : T(0);
  }
}

template <class T>
void dropout(const Stream& stream, T* out, bool* mask, const T* in, std::int64_t n, const PhiloxState& state,
             double p) {
  // With p = 1 every word is below the threshold but the largest, and that one is kept as zero.
  const std::uint32_t threshold = p < 1 ? static_cast<std::uint32_t>(p * 0x1p32) : ~0u;
  draw(stream, state, n, 4, [=](const std::uint32_t* words, std::int64_t skip, std::int64_t first, std::int64_t count) {
    // The mask as bytes, because GCC does not vectorise stores of bool.
    dropout_batch(words + skip, count, threshold, static_cast<std::uint8_t>(p < 1 ? 1 : 0),
                  static_cast<T>(p < 1 ? 1 / (1 - p) : 0), in + first, reinterpret_cast<std::uint8_t*>(mask + first),
                  out + first);
  });
}
