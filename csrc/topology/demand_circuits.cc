#include "topology/demand_circuits.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace topoopt {
namespace {

constexpr int kMost = 1 << 20;  // servers, and ports per server; a larger number is an error

void checkCount(const char* name, int count) {
  if (count >= 0 && count <= kMost) return;
  throw std::invalid_argument(std::string(name) + ": " + std::to_string(count) + " is not in 0.." +
                              std::to_string(kMost));
}

void checkServers(int servers, Circuit pair) {
  for (int server : {pair.first, pair.second}) {
    if (server >= 0 && server < servers) continue;
    throw std::invalid_argument("pairs: server " + std::to_string(server) + " is not in 0.." +
                                std::to_string(int64_t{servers} - 1));
  }
}

// Ports with a free transmitter and receiver; a circuit uses one of each.
class FreePorts {
 public:
  FreePorts(int servers, int degree)
      : transmit_(servers, degree), receive_(servers, degree), left_(int64_t{servers} * degree) {}

  bool any() const { return left_ > 0; }
  bool join(Circuit pair) const { return transmit_[pair.first] > 0 && receive_[pair.second] > 0; }
  void take(Circuit pair) {
    --transmit_[pair.first];
    --receive_[pair.second];
    --left_;
  }

 private:
  std::vector<int> transmit_, receive_;  // per server
  int64_t left_;
};

// Union-find of servers joined by circuits; the root is the smallest server.
class JoinedServers {
 public:
  explicit JoinedServers(int servers) : parent_(servers) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  int root(int server) {
    while (parent_[server] != server) {
      parent_[server] = parent_[parent_[server]];
      server = parent_[server];
    }
    return server;
  }
  void join(int a, int b) {
    a = root(a);
    b = root(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<int> parent_;
};

double bytesOf(const PairDemand& demand, Circuit pair) {
  const auto at = std::lower_bound(demand.begin(), demand.end(), pair,
                                   [](const auto& entry, Circuit of) { return entry.first < of; });
  return at != demand.end() && at->first == pair ? at->second : 0.0;
}

// Returns the circuits with the least bytes in two different parts; the same one twice if there is
// only one part.
std::pair<size_t, size_t> leastOfTwoParts(int servers, const std::vector<Circuit>& circuits,
                                          const std::vector<double>& bytes) {
  JoinedServers parts(servers);
  for (const Circuit& circuit : circuits) parts.join(circuit.first, circuit.second);
  const int first = parts.root(circuits.front().first);
  int second = first;
  size_t least = 0, other = 0;
  for (size_t i = 0; i < circuits.size(); ++i) {
    const int part = parts.root(circuits[i].first);
    if (part == first) {
      if (bytes[i] < bytes[least]) least = i;
    } else if (second == first) {
      second = part;
      other = i;
    } else if (part == second && bytes[i] < bytes[other]) {
      other = i;
    }
  }
  return {least, second == first ? least : other};
}

}  // namespace

std::vector<Circuit> circuitsFor(int servers, int degree, const PairDemand& demand,
                                 const std::vector<Circuit>& present, bool halve) {
  struct Waiting {
    double bytes;
    Circuit pair;
    // Heap order: most bytes first, ties by the smaller pair.
    bool operator<(const Waiting& other) const {
      return bytes != other.bytes ? bytes < other.bytes : pair > other.pair;
    }
  };
  checkCount("servers", servers);
  checkCount("degree", degree);
  std::vector<Waiting> heap;
  heap.reserve(demand.size());
  for (const auto& [pair, bytes] : demand) {
    checkServers(servers, pair);
    if (bytes > 0) heap.push_back({bytes, pair});
  }
  std::make_heap(heap.begin(), heap.end());
  FreePorts ports(servers, degree);
  std::vector<Circuit> circuits;
  while (!heap.empty() && ports.any()) {
    std::pop_heap(heap.begin(), heap.end());
    Waiting& most = heap.back();
    if (!ports.join(most.pair)) {
      heap.pop_back();
      continue;
    }
    ports.take(most.pair);
    circuits.push_back(most.pair);
    if (halve) most.bytes /= 2;
    std::push_heap(heap.begin(), heap.end());
  }
  std::vector<Circuit> chosen(circuits);
  std::sort(chosen.begin(), chosen.end(), std::greater<>());
  std::vector<Circuit> kept(present);
  std::stable_sort(kept.begin(), kept.end());
  for (const Circuit& circuit : kept) {
    checkServers(servers, circuit);
    while (!chosen.empty() && chosen.back() < circuit) chosen.pop_back();
    if (!chosen.empty() && chosen.back() == circuit) {
      chosen.pop_back();  // already chosen
    } else if (ports.join(circuit)) {
      ports.take(circuit);
      circuits.push_back(circuit);
    }
  }
  return circuits;
}

void connectParts(int servers, std::vector<Circuit>& circuits, const PairDemand& demand) {
  checkCount("servers", servers);
  std::vector<double> bytes;
  for (const Circuit& circuit : circuits) {
    checkServers(servers, circuit);
    bytes.push_back(bytesOf(demand, circuit));
  }
  // Each exchange joins two parts, unless a server has unequal numbers of senders and receivers.
  for (int exchanges = 0; exchanges < servers && !circuits.empty(); ++exchanges) {
    const auto [first, second] = leastOfTwoParts(servers, circuits, bytes);
    if (first == second) return;
    std::swap(circuits[first].second, circuits[second].second);
    for (size_t i : {first, second}) bytes[i] = bytesOf(demand, circuits[i]);
  }
}

}  // namespace topoopt
