// How transfers and AllReduces slow each other down where they share links, on few servers.

#pragma once

#include <cstddef>
#include <vector>

#include "search/coarse/link_loads.h"

namespace topoopt {

// What reduces on a link since it was free of AllReduces last.
struct Reducing {
  int count = 0;
  double busy_s = 0;  // for all of them
  double per_s = 0;   // how many of them take a second
  // Of the longest: its ring, how long it takes here, and as much of that as of the ring's busiest
  // link.
  int ring = 0;
  float longest_s = 0;
  float part = 0;
};

// AllReduces under way; from `until_s` on none is.
struct ReducingLinks {
  std::vector<Reducing> links;  // empty before the first AllReduce
  double until_s = 0;
};

// A ring moves in step: where one of its links is busy with a transfer, the others wait for that
// one. At flow level a link gives as much to each AllReduce under way as to a flow of the transfer,
// as far as max-min fairness is about that link. So while a transfer whose largest flow takes f
// seconds on a link keeps it busy for b, of n AllReduces with the part p there each gets on by f:
//
//     the transfer takes  n p f  longer on that link,
//     all links of the ring have  b - n (1 - p) f  less for AllReduces.
//
// Where that is left out, strategies in which the links of transfers and those of rings are others,
// but not all of them, seem as much as a tenth faster than at flow level.
class LinkSharing {
 public:
  // `loads` must outlive this object.
  explicit LinkSharing(const LinkLoadTable& loads);

  // A transfer that is ready at `ready_s`, before `reducing.until_s`. Per link, `transfers` is when
  // transfers are over, and `all` when AllReduces are, too. Returns when its last link is done.
  double transfer(const LinkLoads& loads, double size_bytes, double ready_s, double* transfers,
                  double* all, ReducingLinks& reducing);

  // An AllReduce, before its time is added to `all`.
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
