// Loops over vectors of times, several entries at once. Every vector is padded to whole blocks.

#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace topoopt {

// Vectors of the compiler (GCC and Clang), which it maps onto whatever the processor has. Only
// comparisons, selections, sums and products of single entries: the results are the same
// everywhere.
typedef double Lanes __attribute__((vector_size(16)));
constexpr size_t kLanes = sizeof(Lanes) / sizeof(double);
constexpr size_t kBlock = 4 * kLanes;  // of a loop: independent sums and maxima hide each other

inline Lanes larger(Lanes a, Lanes b) { return a < b ? b : a; }
inline Lanes smaller(Lanes a, Lanes b) { return b < a ? b : a; }
inline Lanes spread(double value) { return Lanes{value, value}; }
inline Lanes load(const double* at) {
  Lanes lanes;
  __builtin_memcpy(&lanes, at, sizeof lanes);
  return lanes;
}
inline void store(double* at, Lanes lanes) { __builtin_memcpy(at, &lanes, sizeof lanes); }
inline double largest(Lanes a, Lanes b) {
  const Lanes both = larger(a, b);
  return std::max(both[0], both[1]);
}

// The size of a vector of `entries`, padding included.
inline size_t padded(size_t entries) { return (entries + kBlock - 1) / kBlock * kBlock; }

}  // namespace topoopt
