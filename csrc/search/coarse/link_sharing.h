// Models the mutual slowdown of transfers and AllReduces on shared links, on a few servers.

#pragma once

#include <cstddef>
#include <vector>

#include "search/coarse/link_loads.h"

namespace topoopt {

// AllReduces on a link since it was last free of them.
struct Reducing {
  int count = 0;
  double busy_s = 0;  // total
  double per_s = 0;   // their number per second
  // The longest one: its ring, its time here, and the ratio of that to the ring's busiest link.
  int ring = 0;
  float longest_s = 0;
  float part = 0;
};

// Active AllReduces; all have ended by `until_s`.
struct ReducingLinks {
  std::vector<Reducing> links;  // empty before the first
  double until_s = 0;
};

// A ring moves in step: if a transfer occupies one of its links, the others wait for that one. At
// flow level, a link's max-min fair share is equal for each active AllReduce and each flow of the
// transfer. Let the transfer's largest flow take f seconds on a link and keep it busy for b, with n
// AllReduces whose fraction there is p. Each of them advances by f, so
//
//     the transfer takes  n p f  longer on that link,
//     all links of the ring have  b - n (1 - p) f  less for AllReduces.
//
// Without this, strategies whose transfers and rings use partly disjoint links seem up to a tenth
// faster than at flow level.
class LinkSharing {
 public:
  // `loads` must outlive this object.
  explicit LinkSharing(const LinkLoadTable& loads);

  // A transfer ready at `ready_s`, before `reducing.until_s`. Per link, `transfers` is the end of
  // transfers, `all` also of AllReduces. Returns the end of its last link.
  double transfer(const LinkLoads& loads, double size_bytes, double ready_s, double* transfers,
                  double* all, ReducingLinks& reducing);

  // Records an AllReduce before its time is added to `all`.
  void reduce(const LinkLoads& loads, double size_bytes, double ready_s, const double* transfers,
              const double* all, ReducingLinks& reducing) const;

 private:
  void hold(const LinkLoads& loads, double size_bytes, double ready_s, const double* transfers,
            double* all, ReducingLinks& reducing);

  const LinkLoadTable& loads_;
  std::vector<double> busy_s_;  // of a transfer, per link
  std::vector<double> held_s_;  // by a transfer, per ring
  std::vector<int> held_rings_;
};

}  // namespace topoopt
