// The bound of the slowest cut on an AllGather over any directed graph of links.

#pragma once

#include <cstdint>
#include <vector>

#include "plan/gather_plan.h"
#include "plan/integer_links.h"

namespace topoopt {

// The servers of `servers` send their shards over links that take at least `seconds`, if one shard
// takes 1 / rate seconds on a link.
struct CutBound {
  double seconds = 0;
  std::vector<int> servers{};  // in ascending order; empty if no shard has to cross a link
};

// The largest bound of all cuts. Every server has `shards` shards of equal size: one each for an
// AllGather, one at the root and none elsewhere for a broadcast. Parallel links are added up.
// Rates are those of IntegerLinks: exact if integers, or integers times a common unit.
// Throws std::invalid_argument for a server without a path from a server with shards, if there are
// no shards, for a rate that is not positive and finite, and for numbers out of range.
CutBound cutBound(int servers, const std::vector<RatedLink>& links, const std::vector<int>& shards);

// The same as a fraction of integers without a common divisor: the shards of a set of servers, and
// the rate of the links that leave it.
struct SlowestCut {
  int64_t shards = 0;
  int64_t rate = 1;
  std::vector<int> servers{};
};

SlowestCut slowestCut(const IntegerLinks& links, const std::vector<int>& shards);

}  // namespace topoopt
