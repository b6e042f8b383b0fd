// Loops over vectors of times per server or link, the hot path of the search. They process several
// entries at once, as many as the processor supports. Only element-wise comparisons, selections,
// sums and products are used, so results are equal on all processors.

#pragma once

#include <cstddef>

namespace topoopt {

constexpr size_t kBlock = 8;  // vectors are padded to whole blocks of entries

// Size of a vector of `entries` with padding.
inline size_t padded(size_t entries) { return (entries + kBlock - 1) / kBlock * kBlock; }

// Every `n` is a multiple of kBlock. Masks are 0 or infinity.
struct LaneLoops {
  // Every server in `members` computes for `seconds` once it is free and `ready`. The others finish
  // at 0 and keep their free times.
  void (*compute)(double* done, double* free, const double* ready, const double* members,
                  double seconds, size_t n);

  // Raises `ready` to at least `seconds` where `mask` applies.
  void (*wait)(double* ready, const double* mask, double seconds, size_t n);

  // Maximum of `times` where `mask` applies; at least 0.
  double (*latest)(const double* times, const double* mask, size_t n);

  // The largest of `values` and `from`.
  double (*largest)(const double* values, double from, size_t n);

  // A transfer of `bytes` on every loaded link: after `transfers` and not before `ready`. `all` is
  // the end of transfers and AllReduces. Returns the end of the last link.
  double (*transfer)(double* transfers, double* all, const double* s_per_byte, double bytes,
                     double ready, size_t n);

  // The same for an AllReduce, after all other traffic.
  double (*reduce)(double* all, const double* s_per_byte, double bytes, double ready, size_t n);

  // Adds `factor` times `terms` to `sums`; returns the largest sum, at least 0.
  double (*add)(double* sums, const double* terms, double factor, size_t n);
};

// The loops for this processor.
const LaneLoops& laneLoops();

// The loops for any processor.
const LaneLoops& plainLaneLoops();

}  // namespace topoopt
