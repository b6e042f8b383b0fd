// The messages in which a GatherPlan moves the shards. Only for csrc/plan.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/gather_plan.h"

namespace topoopt {

// A part of a shard that crosses a link, in units. Data moves from `from` to `to` in an AllGather,
// from `to` to `from` in a ReduceScatter.
struct ShardHop {
  int from;
  int to;
  int32_t first;
  int32_t end;
  int step;
};

// The first of `count` elements that belongs to `unit` of `units`. Both ends of a link compute it.
inline size_t elementAt(size_t count, int32_t unit, int32_t units) {
  const auto all = static_cast<size_t>(units);
  const auto before = static_cast<size_t>(unit);
  return count / all * before + count % all * before / all;  // no product with count overflows
}

// The pieces of a plan by origin.
std::vector<std::vector<ShardHop>> hopsByOrigin(const GatherPlan& plan);

// The hops of one origin's shard. Messages are cut where a server's data of one message came in
// several, so that each message waits for one other.
class OriginHops {
 public:
  using Cuts = std::vector<int32_t>;  // ascending, without 0 and the last unit
  using Parts = std::vector<std::pair<int32_t, int32_t>>;

  OriginHops(const GatherPlan& plan, const std::vector<ShardHop>& pieces);

  // Parts of a server's own data in a ReduceScatter: for each, the same servers send to it.
  Parts atoms(int server) const { return parts(0, units_, cuts_[server]); }
  // The start of the part that holds the unit.
  int32_t atomOf(int server, int32_t unit) const { return startOf(cuts_[server], unit); }
  // The same for the messages in which a server receives the shard.
  int32_t pieceOf(int server, int32_t unit) const { return startOf(own_cuts_[server], unit); }
  Parts pieces(int server) const { return parts(0, units_, own_cuts_[server]); }

  // Messages over the links of one server.
  std::vector<ShardHop> gathering(int server) const;
  std::vector<ShardHop> scattering(int server) const;

 private:
  static int32_t startOf(const Cuts& cuts, int32_t unit);
  static Parts parts(int32_t first, int32_t end, const Cuts& cuts);
  template <typename CutsOf>
  std::vector<ShardHop> cut(int server, CutsOf cuts_of) const;

  const int32_t units_;
  const std::vector<ShardHop>& pieces_;
  std::vector<Cuts> own_cuts_;  // by server, of the messages in which it gets the shard
  std::vector<Cuts> cuts_;      // also of those in which it passes the shard on
};

}  // namespace topoopt
