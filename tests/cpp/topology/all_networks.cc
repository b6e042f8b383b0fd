// The least cost of any simplex network: tries them all.
//
//   all_networks SERVERS DEGREE < weights
//
// Standard input has any number of matrices of SERVERS x SERVERS whole numbers, row by row: what a
// hop from the row's server to the column's costs. For each, a line with the least sum of hops
// times weights over all networks in which every server has at most DEGREE links out and at most
// DEGREE in and reaches every other. Then a line with the number of networks in which every server
// has DEGREE of both (2-regular ones are sequence A007107, 3-regular ones A007105 of the OEIS), and
// one with the number of networks whose cost was taken.
//
// Parallel links and links to oneself shorten no way, so networks are sets of ordered pairs. Adding
// a link makes no way longer, so only those are priced to which none can be added: every server
// with a transmitter left has a link to every other one with a receiver left. Where a receiver is
// left at all, at most DEGREE servers have a transmitter left, for DEGREE - 1 links lead to it.

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <vector>

namespace {

constexpr int kMost = 8;

struct Search {
  int servers = 0;
  int degree = 0;
  std::vector<std::vector<int64_t>> weights;
  std::vector<int64_t> least;
  int64_t regular = 0;
  int64_t priced = 0;

  unsigned out[kMost] = {};
  int received[kMost] = {};

  void extend(int server, int lacking) {
    if (server == servers) return finish(lacking);
    if (lacking > 0 && isDominated(server)) return;
    const unsigned others = ((1u << servers) - 1) & ~(1u << server);
    for (unsigned row = others;; row = (row - 1) & others) {
      const int links = std::popcount(row);
      const int lack = lacking + (links < degree);
      if (links <= degree && lack <= degree && take(row, 1)) {
        out[server] = row;
        extend(server + 1, lack);
        take(row, -1);
      }
      if (row == 0) break;
    }
  }

  // Whether a link could be added in the end, whatever servers from `server` on do: from one that
  // lacks a link to one that cannot receive all of its own any more.
  bool isDominated(int server) const {
    unsigned open = 0;
    for (int v = 0; v < servers; ++v) {
      const int to_come = servers - server - (v >= server);
      open |= unsigned{received[v] + to_come < degree} << v;
    }
    for (int u = 0; u < server; ++u) {
      if (std::popcount(out[u]) < degree && (open & ~out[u] & ~(1u << u))) return true;
    }
    return false;
  }

  // Adds `by` to what every server of `row` receives; false, and nothing done, if one has no room.
  bool take(unsigned row, int by) {
    for (unsigned left = row; by > 0 && left; left &= left - 1) {
      if (received[std::countr_zero(left)] == degree) return false;
    }
    for (unsigned left = row; left; left &= left - 1) received[std::countr_zero(left)] += by;
    return true;
  }

  void finish(int lacking) {
    if (lacking == 0) ++regular;
    if (lacking == 0 || !isDominated(servers)) price();
  }

  void price() {
    int hops[kMost * kMost];
    const unsigned everyone = (1u << servers) - 1;
    for (int source = 0; source < servers; ++source) {
      unsigned reached = 1u << source, fresh = reached;
      hops[source * servers + source] = 0;
      for (int hop = 1; reached != everyone; ++hop) {
        unsigned next = 0;
        for (; fresh; fresh &= fresh - 1) next |= out[std::countr_zero(fresh)];
        fresh = next & ~reached;
        if (!fresh) return;  // not everybody is reached
        reached |= fresh;
        for (unsigned left = fresh; left; left &= left - 1) {
          hops[source * servers + std::countr_zero(left)] = hop;
        }
      }
    }
    ++priced;
    for (size_t i = 0; i < weights.size(); ++i) {
      int64_t cost = 0;
      for (int k = 0; k < servers * servers; ++k) cost += weights[i][k] * hops[k];
      if (cost < least[i]) least[i] = cost;
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  Search search;
  search.servers = argc == 3 ? std::atoi(argv[1]) : 0;
  search.degree = argc == 3 ? std::atoi(argv[2]) : 0;
  if (search.servers < 2 || search.servers > kMost || search.degree < 1) {
    std::cerr << "all_networks SERVERS (2 to " << kMost << ") DEGREE (from 1 on)\n";
    return 2;
  }
  const size_t cells = static_cast<size_t>(search.servers) * search.servers;
  std::vector<int64_t> matrix;
  for (int64_t weight = 0; std::cin >> weight;) {
    matrix.push_back(weight);
    if (matrix.size() < cells) continue;
    search.weights.push_back(matrix);
    matrix.clear();
  }
  search.least.assign(search.weights.size(), std::numeric_limits<int64_t>::max());
  search.extend(0, 0);
  for (const int64_t cost : search.least) std::cout << cost << '\n';
  std::cout << search.regular << '\n' << search.priced << '\n';
}
