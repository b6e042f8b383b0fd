// Loads of transfers and AllReduces as vectors over the links and servers of a network.

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

// Busy seconds of every link per byte, for the transfers of one tensor or the rings of one
// AllReduce. A few loaded links are listed; otherwise a dense vector, padded for lane_loops.h.
struct LinkLoads {
  std::vector<int> link;
  std::vector<double> s_per_byte;  // per entry of `link`; empty `link`: per link
  double latency_s = 0;            // maximum over all paths
  double latency_s_per_byte = 0;   // AllReduces only
  double largest_flow = 0;         // of transfers: largest one, per byte
  // AllReduces only, per entry of `s_per_byte`: ring number, and the load relative to the ring's
  // busiest link.
  std::vector<int> ring;
  std::vector<double> part;
  bool empty() const { return s_per_byte.empty(); }
  size_t bytes() const { return link.size() * sizeof(int) + s_per_byte.size() * sizeof(double); }
};

// The loads between two operators. Masks are 0 or infinity per server: min(time, mask) selects the
// masked servers.
struct EdgeLoads {
  LinkLoads forward, backward;
  std::vector<double> sends;     // forward senders; they receive gradients
  std::vector<double> receives;  // forward receivers; they send gradients
  size_t bytes() const {
    return forward.bytes() + backward.bytes() + 2 * sends.size() * sizeof(double) + sizeof *this;
  }
};

// The loads of one network, cached. One thread only.
class LinkLoadTable {
 public:
  LinkLoadTable(RoutedNetwork network, PlacementCosts& costs);

  // Loads if operator `op` on placement `consumer` reads one byte from `producer`. Null if no data
  // moves. Throws std::invalid_argument without a route.
  std::shared_ptr<const EdgeLoads> edge(int op, int producer, int consumer);

  // Loads per byte of concurrent AllReduces of `size_bytes` in each parameter group of placement
  // `id`. The size selects rings, rows and columns, or a schedule (GroupPaths).
  const LinkLoads& reductions(int id, double size_bytes);

  // Returns whether those depend on the size.
  bool reductionsVary(int id) { return !reductionsOf(id).crossings.empty(); }

  size_t links() const { return s_per_byte_.size(); }
  double secondsPerByte(size_t link) const { return s_per_byte_[link]; }

  // Number of links, padded for lane_loops.h.
  size_t lanes() const { return padded(s_per_byte_.size()); }

  // Mask per server (0 or infinity): whether it has a shard of placement `id`.
  const std::vector<double>& members(int id);

 private:
  // The loads of one placement; they are constant between consecutive crossings of its groups
  // (GroupPaths).
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
  std::vector<double> sum_;         // in progress, per link
  std::vector<int> loaded_;         // links with a sum
  std::vector<int> ring_;           // of the current AllReduce, per link
  std::unordered_map<uint64_t, std::shared_ptr<const EdgeLoads>> recent_edges_, older_edges_;
  size_t recent_bytes_ = 0;
  std::vector<Reductions> reductions_;
  std::vector<std::vector<double>> members_;
};

}  // namespace topoopt
