#include "search/coarse/lane_loops.h"

#include <algorithm>

namespace topoopt {

namespace {

// Compiler vectors (GCC and Clang); all processors support two entries. Not 512 bits wide, and no
// FMA with AVX2, because fused operations round differently.
typedef double Two __attribute__((vector_size(16)));
typedef double Four __attribute__((vector_size(32)));

// Lanes are passed by reference only, because passing them by value depends on the processor.
template <typename Lanes>
struct Loops {
  static constexpr size_t kLanes = sizeof(Lanes) / sizeof(double);

  [[gnu::always_inline]] static inline void get(Lanes& lanes, const double* at) {
    __builtin_memcpy(&lanes, at, sizeof lanes);
  }
  [[gnu::always_inline]] static inline void put(double* at, const Lanes& lanes) {
    __builtin_memcpy(at, &lanes, sizeof lanes);
  }
  [[gnu::always_inline]] static inline void splat(Lanes& lanes, double value) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = value;
  }
  [[gnu::always_inline]] static inline void raise(Lanes& a, const Lanes& b) { a = a < b ? b : a; }
  [[gnu::always_inline]] static inline void lower(Lanes& a, const Lanes& b) { a = b < a ? b : a; }
  [[gnu::always_inline]] static inline double largestOf(const Lanes& a, const Lanes& b) {
    double most = std::max(a[0], b[0]);
    for (size_t i = 1; i < kLanes; ++i) most = std::max(most, std::max(a[i], b[i]));
    return most;
  }

  [[gnu::always_inline]] static inline void compute(double* done, double* free, const double* ready,
                                                    const double* members, double seconds,
                                                    size_t n) {
    Lanes duration, before, after, member;
    splat(duration, seconds);
    for (size_t i = 0; i < n; i += kLanes) {
      get(before, free + i);
      get(after, ready + i);
      get(member, members + i);
      raise(after, before);
      after += duration;
      lower(after, member);
      put(done + i, after);
      raise(before, after);
      put(free + i, before);
    }
  }

  [[gnu::always_inline]] static inline void wait(double* ready, const double* mask, double seconds,
                                                 size_t n) {
    Lanes arrived, until, applies;
    splat(arrived, seconds);
    for (size_t i = 0; i < n; i += kLanes) {
      get(until, ready + i);
      get(applies, mask + i);
      lower(applies, arrived);
      raise(until, applies);
      put(ready + i, until);
    }
  }

  // Two independent maxima hide each other's latency.
  [[gnu::always_inline]] static inline double latest(const double* times, const double* mask,
                                                     size_t n) {
    Lanes a = {}, b = {}, time, applies;
    for (size_t i = 0; i < n; i += 2 * kLanes) {
      get(time, times + i);
      get(applies, mask + i);
      lower(time, applies);
      raise(a, time);
      get(time, times + i + kLanes);
      get(applies, mask + i + kLanes);
      lower(time, applies);
      raise(b, time);
    }
    return largestOf(a, b);
  }

  [[gnu::always_inline]] static inline double largest(const double* values, double from, size_t n) {
    Lanes a, b, value;
    splat(a, from);
    splat(b, from);
    for (size_t i = 0; i < n; i += 2 * kLanes) {
      get(value, values + i);
      raise(a, value);
      get(value, values + i + kLanes);
      raise(b, value);
    }
    return largestOf(a, b);
  }

  // Unloaded links keep their times: for them the ready time is 0, and 0 is added.
  [[gnu::always_inline]] static inline double transfer(double* transfers, double* all,
                                                       const double* s_per_byte, double bytes,
                                                       double ready, size_t n) {
    Lanes size, from, begin, busy, end, over, done;
    const Lanes none = {};
    splat(size, bytes);
    splat(from, ready);
    done = from;
    for (size_t i = 0; i < n; i += kLanes) {
      get(busy, s_per_byte + i);
      busy *= size;
      get(begin, transfers + i);
      const Lanes earliest = busy > none ? from : none;
      raise(begin, earliest);
      end = begin + busy;
      put(transfers + i, end);
      get(over, all + i);
      raise(begin, over);
      begin += busy;
      over = busy > none ? begin : over;
      put(all + i, over);
      end = busy > none ? end : none;
      raise(done, end);
    }
    return largestOf(done, done);
  }

  [[gnu::always_inline]] static inline double reduce(double* all, const double* s_per_byte,
                                                     double bytes, double ready, size_t n) {
    Lanes size, from, busy, end, done;
    const Lanes none = {};
    splat(size, bytes);
    splat(from, ready);
    done = from;
    for (size_t i = 0; i < n; i += kLanes) {
      get(busy, s_per_byte + i);
      busy *= size;
      get(end, all + i);
      const Lanes earliest = busy > none ? from : none;
      raise(end, earliest);
      end += busy;
      put(all + i, end);
      end = busy > none ? end : none;
      raise(done, end);
    }
    return largestOf(done, done);
  }

  [[gnu::always_inline]] static inline double add(double* sums, const double* terms, double factor,
                                                  size_t n) {
    Lanes by, term, sum, most = {};
    splat(by, factor);
    for (size_t i = 0; i < n; i += kLanes) {
      get(term, terms + i);
      get(sum, sums + i);
      term *= by;
      sum += term;
      put(sums + i, sum);
      raise(most, sum);
    }
    return largestOf(most, most);
  }
};

// The loops for one kind of processor.
#define TOPOOPT_LOOPS(name, Lanes, target)                                                         \
  struct name {                                                                                    \
    target static void compute(double* done, double* free, const double* ready,                    \
                               const double* members, double seconds, size_t n) {                  \
      Loops<Lanes>::compute(done, free, ready, members, seconds, n);                               \
    }                                                                                              \
    target static void wait(double* ready, const double* mask, double seconds, size_t n) {         \
      Loops<Lanes>::wait(ready, mask, seconds, n);                                                 \
    }                                                                                              \
    target static double latest(const double* times, const double* mask, size_t n) {               \
      return Loops<Lanes>::latest(times, mask, n);                                                 \
    }                                                                                              \
    target static double largest(const double* values, double from, size_t n) {                    \
      return Loops<Lanes>::largest(values, from, n);                                               \
    }                                                                                              \
    target static double transfer(double* transfers, double* all, const double* s_per_byte,        \
                                  double bytes, double ready, size_t n) {                          \
      return Loops<Lanes>::transfer(transfers, all, s_per_byte, bytes, ready, n);                  \
    }                                                                                              \
    target static double reduce(double* all, const double* s_per_byte, double bytes, double ready, \
                                size_t n) {                                                        \
      return Loops<Lanes>::reduce(all, s_per_byte, bytes, ready, n);                               \
    }                                                                                              \
    target static double add(double* sums, const double* terms, double factor, size_t n) {         \
      return Loops<Lanes>::add(sums, terms, factor, n);                                            \
    }                                                                                              \
    static constexpr LaneLoops kTable{compute, wait, latest, largest, transfer, reduce, add};      \
  }

TOPOOPT_LOOPS(Plain, Two, );
#ifdef __x86_64__
TOPOOPT_LOOPS(Avx2, Four, [[gnu::target("avx2")]]);
#endif
#undef TOPOOPT_LOOPS

}  // namespace

const LaneLoops& plainLaneLoops() { return Plain::kTable; }

const LaneLoops& laneLoops() {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return Avx2::kTable;
#endif
  return Plain::kTable;
}

}  // namespace topoopt
