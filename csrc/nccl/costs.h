// What NCCL's algorithms cost on the cables of a plan, by the bytes that they put on each cable and
// each rank that has cables, and the messages that wait for each other: the alpha-beta model.
//
// NCCL orders servers by their ranks. A ring goes from each server to the next. Trees are two, each
// with half of the bytes, both ways over each edge; an edge without a cable loads all cables of its
// routes. PAT sends between servers that are a power of two apart.

#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "nccl/tuner_abi.h"
#include "nccl/wiring.h"

namespace topoopt::nccl {

// `bytes` are NCCL's: of the longer of the two buffers of a rank.
struct Cost {
  double latency_s = 0;   // of messages that wait for each other
  double s_per_byte = 0;  // of the cable, or the rank, that is loaded most

  double seconds(double bytes) const { return latency_s + s_per_byte * bytes; }
};

class FabricCosts {
 public:
  explicit FabricCosts(const Wiring& wiring);

  int servers() const { return static_cast<int>(order_.size()); }

  // Of a communicator of `ranks` ranks on all servers.
  Cost ring(NcclCollective collective, size_t ranks) const;
  Cost trees() const;  // AllReduce
  Cost pat() const;    // AllGather and ReduceScatter

  // What cables let a ring carry, in Gb/s.
  double ringGbps() const;

 private:
  // From server to server, by their places in NCCL's order, and the part of all bytes.
  struct Traffic {
    int source;
    int target;
    double part;
  };

  // Of all bytes: their routes, with the part of each as weight.
  std::vector<plan::Route> routesOf(const Traffic& traffic) const;
  // Seconds per byte of what is loaded most, for relays twice.
  double cables(const std::vector<Traffic>& traffic) const;
  double threads(const std::vector<Traffic>& traffic) const;
  double perByte(const std::vector<Traffic>& traffic) const;
  std::vector<Traffic> around(double part) const;
  double latency(int source, int target) const;
  double latencyAround() const;

  std::vector<int> order_;  // ranks with cables, in NCCL's order of their servers
  std::map<std::pair<int, int>, double> gbps_;  // from rank to rank, of all cables
  std::map<std::pair<int, int>, std::vector<plan::Route>> routes_;
};

// The parents in the first of NCCL's two trees over `count` servers; -1 at the root. The second is
// its mirror image, or, where `count` is odd, the first one moved on by a server.
std::vector<int> treeParents(int count);
std::vector<int> secondTreeParents(int count);

}  // namespace topoopt::nccl
