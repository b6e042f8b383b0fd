// Loops over vectors of times, one entry per server or per link: what the search spends its time
// with. They run several entries at once, as many as the processor can. Only comparisons,
// selections, sums and products of single entries: the results are the same everywhere.

#pragma once

#include <cstddef>

namespace topoopt {

constexpr size_t kBlock = 8;  // vectors are padded to whole blocks of entries

// The size of a vector of `entries`, padding included.
inline size_t padded(size_t entries) { return (entries + kBlock - 1) / kBlock * kBlock; }

// Every `n` is a multiple of kBlock. Masks are 0 or infinity.
struct LaneLoops {
  // Every server in `members` computes for `seconds` once it is free and `ready`. Others are done
  // at 0, and stay as free as they are.
  void (*compute)(double* done, double* free, const double* ready, const double* members,
                  double seconds, size_t n);

  // Where `mask` applies, nothing is ready before `seconds`.
  void (*wait)(double* ready, const double* mask, double seconds, size_t n);

  // The latest of `times` where `mask` applies; at least 0.
  double (*latest)(const double* times, const double* mask, size_t n);

  // The largest of `values` and `from`.
  double (*largest)(const double* values, double from, size_t n);

  // A transfer of `bytes` on every link that takes time for it: after what `transfers` says, and no
  // earlier than `ready`. `all` is when transfers and AllReduces are over. Returns when the last
  // link is done.
  double (*transfer)(double* transfers, double* all, const double* s_per_byte, double bytes,
                     double ready, size_t n);

  // The same for an AllReduce, which comes after everything else.
  double (*reduce)(double* all, const double* s_per_byte, double bytes, double ready, size_t n);

  // Adds `factor` times `terms` to `sums`; returns the largest sum, at least 0.
  double (*add)(double* sums, const double* terms, double factor, size_t n);
};

// Those for this processor.
const LaneLoops& laneLoops();

// Those that every processor can run.
const LaneLoops& plainLaneLoops();

}  // namespace topoopt
