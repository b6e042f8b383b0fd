// What transfers and AllReduces load, as vectors over the links and servers of a network.

#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "search/coarse/lane_loops.h"
#include "sim/iteration/job.h"
#include "sim/iteration/routed_network.h"

namespace topoopt {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Seconds that every link is busy per byte, for the transfers of one tensor or for the rings of one
// AllReduce. Few loaded links are listed; many are a dense vector, padded for lane_loops.h.
struct LinkLoads {
  std::vector<int> link;
  std::vector<double> s_per_byte;  // per entry of `link`, or per link if `link` is empty
  double latency_s = 0;            // the longest of all ways
  double largest_flow = 0;         // of transfers: the bytes of the largest, per byte
  // Of AllReduces, per entry of `s_per_byte`: a number of the ring there, and the load as a part of
  // that of the ring's busiest link.
  std::vector<int> ring;
  std::vector<double> part;
  bool empty() const { return s_per_byte.empty(); }
  size_t bytes() const { return link.size() * sizeof(int) + s_per_byte.size() * sizeof(double); }
};

// What is between two operators. Masks are 0 or infinity per server, so that the smaller of a
// time and a mask is the time where the mask applies.
struct EdgeLoads {
  LinkLoads forward, backward;
  std::vector<double> sends;     // forward; receives gradients
  std::vector<double> receives;  // forward; sends gradients
  size_t bytes() const {
    return forward.bytes() + backward.bytes() + 2 * sends.size() * sizeof(double) + sizeof *this;
  }
};

// Loads of one network, kept once computed. Not for several threads at once.
class LinkLoadTable {
 public:
  LinkLoadTable(RoutedNetwork network, PlacementCosts& costs);

  // Operator `op` on placement `consumer` reads a tensor of one byte from placement `producer`.
  // Null where every server keeps what it has. Throws std::invalid_argument where there is no
  // route.
  std::shared_ptr<const EdgeLoads> edge(int op, int producer, int consumer);

  // Per byte, of AllReduces of `size_bytes` in each parameter group of placement `id`, all at once:
  // how large they are decides which of them go along rows and columns.
  const LinkLoads& reductions(int id, double size_bytes);

  // Whether those differ with the size.
  bool reductionsVary(int id) { return !reductionsOf(id).crossings.empty(); }

  size_t links() const { return s_per_byte_.size(); }
  double secondsPerByte(size_t link) const { return s_per_byte_[link]; }

  // Links, padded for lane_loops.h.
  size_t lanes() const { return padded(s_per_byte_.size()); }

  // 0 or infinity per server: whether it has a shard of placement `id`.
  const std::vector<double>& members(int id);

 private:
  // Of one placement: between two neighbouring crossings of its groups (GroupPaths) loads are
  // alike.
  struct Reductions {
    bool is_known = false;
    std::vector<double> crossings;  // ascending
    std::vector<std::unique_ptr<LinkLoads>> loads;
  };

  void add(int path, double bytes);
  void addRing(int path, double bytes, int ring);
  void nameRings(LinkLoads& loads);
  Reductions& reductionsOf(int id);
  LinkLoads makeReductions(int id, double size_bytes);
  LinkLoads collect(double latency_s);
  void remember(uint64_t key, const std::shared_ptr<const EdgeLoads>& edge);
  std::shared_ptr<const EdgeLoads> makeEdge(const std::vector<Transfer>& transfers);

  RoutedNetwork network_;
  PlacementCosts& costs_;
  std::vector<double> s_per_byte_;  // 1 / capacity
  std::vector<double> sum_;         // being collected, per link
  std::vector<int> loaded_;         // links with a sum
  std::vector<int> ring_;           // of the AllReduce that is being collected, per link
  std::unordered_map<uint64_t, std::shared_ptr<const EdgeLoads>> recent_edges_, older_edges_;
  size_t recent_bytes_ = 0;
  std::vector<Reductions> reductions_;
  std::vector<std::vector<double>> members_;
};

}  // namespace topoopt
