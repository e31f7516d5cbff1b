// Loops of optim.cpp, compiled per instruction set.

template <class T>
void sgd_plain(const Stream& stream, std::int64_t n, T* p, const T* g, const SgdUpdate<T>& update) {
  parallel_for(stream, n, kGrain, [=](std::int64_t begin, std::int64_t end) {
    TANDEM_INDEPENDENT
    for (std::int64_t i = begin; i < end; ++i) {
      const T d = update.gradient(p[i], g[i]);
      p[i] = update.step(p[i], d, d);
    }
  });
}

template <class T>
void sgd_momentum(const Stream& stream, std::int64_t n, T* p, const T* g, T* velocity, const SgdUpdate<T>& update) {
  parallel_for(stream, n, kGrain, [=](std::int64_t begin, std::int64_t end) {
    TANDEM_INDEPENDENT
    for (std::int64_t i = begin; i < end; ++i) {
      const T d = update.gradient(p[i], g[i]);
      const T v = update.velocity(velocity[i], d);
      velocity[i] = v;
      p[i] = update.step(p[i], d, v);
    }
  });
}

template <class T>
void adam(const Stream& stream, std::int64_t n, T* p, const T* g, T* m, T* v, const AdamUpdate<T>& update) {
  parallel_for(stream, n, kGrain, [=](std::int64_t begin, std::int64_t end) {
    TANDEM_INDEPENDENT
    for (std::int64_t i = begin; i < end; ++i) {
      T pi = p[i], mi = m[i], vi = v[i];
      update(pi, g[i], mi, vi);
      p[i] = pi;
      m[i] = mi;
      v[i] = vi;
    }
  });
}
