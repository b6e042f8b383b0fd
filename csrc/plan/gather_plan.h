// The plan of an AllGather over any directed graph of links: the sender of every part of every
// server's shard, to every other server.
//
// The same plan on the reversed graph, run backwards, is a ReduceScatter. A ReduceScatter and an
// AllGather are an AllReduce. A plan with one origin is a broadcast or a reduce.

#pragma once

#include <cstdint>
#include <vector>

#include "plan/rated_links.h"

namespace topoopt {

// Part [first, end) of the shard of `origin`, in units of 1 / GatherPlan::units. The receiver gets
// it from `sender`, which has it before: it is the origin, or received it in an earlier step.
struct Piece {
  int origin = -1;
  int sender = -1;
  int32_t first = 0;
  int32_t end = 0;
  int step = 0;  // from 0

  bool operator==(const Piece&) const = default;
};

struct GatherPlan {
  int32_t units = 1;  // of every shard
  int steps = 0;
  // By receiver, ordered by step, origin and first. The pieces of an origin cover its shard once.
  std::vector<std::vector<Piece>> received{};
};

}  // namespace topoopt
