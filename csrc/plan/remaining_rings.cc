#include "plan/remaining_rings.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>

namespace topoopt {
namespace {

// Additional rings cost more messages, so their number is limited.
constexpr size_t kMoreRings = 2;
constexpr size_t kCyclesPerRing = 8;  // searched candidates
// Limit of visited servers in the search, because the network waits for it.
constexpr size_t kSearchBudget = 2'000'000;
constexpr size_t kStepsPerServer = 50;  // per attempt
constexpr size_t kRounds = 300;         // of balancing
constexpr double kLeastShare = 0.01;
// Required improvement of the busiest link for unplanned rings or detours.
constexpr double kPriceOfNew = 1.05;
constexpr double kPriceOfDetours = 1.25;

class Graph {
 public:
  explicit Graph(const std::vector<LinkLeft>& links) {
    int servers = 0;
    for (const LinkLeft& link : links)
      servers = std::max({servers, link.source + 1, link.target + 1});
    from_.resize(static_cast<size_t>(servers));
    for (const LinkLeft& link : links) {
      from_[link.source].push_back({link.target, rates.size()});
      rates.push_back(link.rate);
      slow_.push_back(link.rate < link.planned_rate);
    }
  }

  // Returns the links of a shortest path.
  std::vector<size_t> path(int source, int target) const {
    std::vector<std::pair<int, size_t>> reached_over(from_.size(), {-1, 0});
    std::vector<int> found{source};
    for (size_t i = 0; i < found.size() && reached_over[target].first < 0; ++i) {
      for (const Edge& edge : from_[found[i]]) {
        if (edge.target == source || reached_over[edge.target].first >= 0) continue;
        reached_over[edge.target] = {found[i], edge.link};
        found.push_back(edge.target);
      }
    }
    std::vector<size_t> links;
    for (int at = target; at != source && reached_over[at].first >= 0;) {
      links.push_back(reached_over[at].second);
      at = reached_over[at].first;
    }
    return links;
  }

  // Returns -1 without a link.
  std::ptrdiff_t linkTo(int source, int target) const {
    if (static_cast<size_t>(source) >= from_.size()) return -1;
    for (const Edge& edge : from_[source]) {
      if (edge.target == target) return static_cast<std::ptrdiff_t>(edge.link);
    }
    return -1;
  }

  bool slow(size_t link) const { return slow_[link]; }

  std::vector<double> rates;  // by link

 private:
  struct Edge {
    int target;
    size_t link;
  };
  std::vector<std::vector<Edge>> from_;
  std::vector<bool> slow_;
};

// A ring and its links, repeated if passed twice.
struct Candidate {
  std::vector<int> servers;
  std::vector<size_t> links;
};

struct Packing {
  std::vector<Candidate> rings;
  std::vector<double> shares;
  double busiest = std::numeric_limits<double>::infinity();
};

Candidate candidateOf(const std::vector<int>& servers, const Graph& graph) {
  Candidate candidate{servers, {}};
  for (size_t i = 0; i < servers.size(); ++i) {
    const auto path = graph.path(servers[i], servers[(i + 1) % servers.size()]);
    candidate.links.insert(candidate.links.end(), path.begin(), path.end());
  }
  return candidate;
}

std::vector<double> usesOf(const std::vector<Candidate>& rings, const std::vector<double>& shares,
                           const std::vector<double>& rates) {
  std::vector<double> uses(rates.size(), 0.0);
  for (size_t r = 0; r < rings.size(); ++r) {
    for (const size_t link : rings[r].links) uses[link] += shares[r] / rates[link];
  }
  return uses;
}

double largestOf(const std::vector<double>& values) {
  return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
}

// Balances shares by multiplicative weights: rings over busy links lose. Returns the best found.
Packing balanced(std::vector<Candidate> rings, const std::vector<double>& rates) {
  constexpr double kSharpness = 30;  // weight of the busiest links
  Packing best{std::move(rings), {}};
  const size_t count = best.rings.size();
  if (count == 0) return best;
  std::vector<double> shares(count, 1.0 / static_cast<double>(count));
  for (size_t round = 0; round < kRounds; ++round) {
    const std::vector<double> uses = usesOf(best.rings, shares, rates);
    const double busiest = largestOf(uses);
    if (busiest < best.busiest * (1 - 1e-9)) {
      best.busiest = busiest;
      best.shares = shares;
    }
    std::vector<double> prices(count, 0.0);
    for (size_t r = 0; r < count; ++r) {
      for (const size_t link : best.rings[r].links) {
        prices[r] += std::exp(kSharpness * (uses[link] / busiest - 1)) / rates[link];
      }
    }
    const double dearest = largestOf(prices);
    const double step = 1.0 / (1.0 + 0.05 * static_cast<double>(round));
    double sum = 0;
    for (size_t r = 0; r < count; ++r) {
      shares[r] *= std::exp(-step * prices[r] / dearest);
      sum += shares[r];
    }
    for (double& share : shares) share /= sum;
  }
  return best;
}

// Selects candidates, with repetition, for equal shares: greedily, then by exchanges while they
// help.
class Selection {
 public:
  Selection(const std::vector<Candidate>& pool, const std::vector<double>& rates)
      : pool_(pool), rates_(rates), uses_(rates.size(), 0.0) {}

  std::vector<Candidate> choose(size_t count) {
    while (chosen_.size() < count) put(cheapest());
    for (size_t pass = 0; pass < kPasses; ++pass) {
      bool changed = false;
      for (size_t i = 0; i < chosen_.size(); ++i) {
        const size_t before = chosen_.front();
        change(before, -1);
        chosen_.erase(chosen_.begin());
        const size_t after = cheapest();
        changed |= pool_[after].servers != pool_[before].servers;
        put(after);
      }
      if (!changed) break;
    }
    std::vector<Candidate> rings;
    for (const size_t i : std::set<size_t>(chosen_.begin(), chosen_.end()))
      rings.push_back(pool_[i]);
    return rings;
  }

 private:
  static constexpr size_t kPasses = 5;

  // A large power emphasises the busiest links.
  static double cost(double use) {
    const double square = use * use;
    return square * square * square * square;
  }

  void put(size_t candidate) {
    chosen_.push_back(candidate);
    change(candidate, 1);
  }
  void change(size_t candidate, double share) {
    for (const size_t link : pool_[candidate].links) uses_[link] += share / rates_[link];
  }

  size_t cheapest() {
    size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < pool_.size(); ++i) {
      double more = 0;
      for (const size_t link : pool_[i].links) {
        more += cost(uses_[link] + 1 / rates_[link]) - cost(uses_[link]);
      }
      if (more >= least) continue;
      least = more;
      best = i;
    }
    return best;
  }

  const std::vector<Candidate>& pool_;
  const std::vector<double>& rates_;
  std::vector<double> uses_;
  std::vector<size_t> chosen_;
};

Packing withoutTheLeast(Packing packing, const std::vector<double>& rates) {
  std::vector<Candidate> kept;
  for (size_t r = 0; r < packing.rings.size(); ++r) {
    if (packing.shares[r] >= kLeastShare) kept.push_back(packing.rings[r]);
  }
  return kept.size() == packing.rings.size() ? packing : balanced(std::move(kept), rates);
}

// Limits the rings to `most` and to those worth their cost, without negligible shares.
Packing packed(const std::vector<Candidate>& pool, const std::vector<double>& rates, size_t most) {
  if (pool.size() <= most) return withoutTheLeast(balanced(pool, rates), rates);
  Packing best;
  for (size_t count = 2; count <= most; count += 2) {
    Packing other = balanced(Selection(pool, rates).choose(count), rates);
    if (other.busiest * kPriceOfNew < best.busiest) best = std::move(other);
  }
  return withoutTheLeast(std::move(best), rates);
}

// Finds Hamiltonian cycles of a group over bidirectional links by rotating a path whose end has no
// free neighbour (Posa, "Hamiltonian circuits in random graphs", 1976). Links of earlier cycles are
// used last, for diversity.
class CycleSearch {
 public:
  CycleSearch(const std::vector<int>& servers, const Graph& graph) : servers_(servers) {
    const size_t count = servers.size();
    neighbours_.resize(count);
    for (size_t a = 0; a < count; ++a) {
      for (size_t b = 0; b < count; ++b) {
        if (a == b || graph.linkTo(servers[a], servers[b]) < 0) continue;
        if (graph.linkTo(servers[b], servers[a]) >= 0) neighbours_[a].push_back(b);
      }
    }
  }

  // Returns at most `most` distinct cycles; a reversed cycle is no new one.
  std::vector<std::vector<int>> find(size_t most) {
    std::vector<std::vector<int>> cycles;
    for (size_t misses = 0; cycles.size() < most && misses < most && spent_ < kSearchBudget;) {
      const std::vector<size_t> cycle = attempt();
      if (cycle.empty() || !seen_.insert(normal(cycle)).second) {
        ++misses;
        continue;
      }
      std::vector<int> named;
      for (size_t i = 0; i < cycle.size(); ++i) {
        named.push_back(servers_[cycle[i]]);
        ++passed_[std::minmax(cycle[i], cycle[(i + 1) % cycle.size()])];
      }
      cycles.push_back(std::move(named));
    }
    return cycles;
  }

 private:
  size_t below(size_t bound) { return random_() % bound; }

  int passed(size_t a, size_t b) const {
    const auto found = passed_.find(std::minmax(a, b));
    return found == passed_.end() ? 0 : found->second;
  }

  static std::vector<size_t> normal(std::vector<size_t> cycle) {
    std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
    if (cycle[1] > cycle.back()) std::reverse(cycle.begin() + 1, cycle.end());
    return cycle;
  }

  // Among free servers; returns their count if there is none.
  size_t freeNeighbour(size_t end, const std::vector<bool>& on_path) {
    const size_t none = neighbours_.size();
    size_t chosen = none;
    size_t equal = 0;
    for (const size_t next : neighbours_[end]) {
      if (on_path[next]) continue;
      const int more = chosen == none ? -1 : passed(end, next) - passed(end, chosen);
      if (more > 0) continue;
      equal = more < 0 ? 1 : equal + 1;
      if (more < 0 || below(equal) == 0) chosen = next;
    }
    return chosen;
  }

  std::vector<size_t> attempt() {
    const size_t count = neighbours_.size();
    std::vector<size_t> path{below(count)};
    std::vector<bool> on_path(count, false);
    on_path[path.front()] = true;
    for (size_t step = 0; step < kStepsPerServer * count && spent_ < kSearchBudget; ++step) {
      const auto& near = neighbours_[path.back()];
      spent_ += near.size() + 1;
      if (near.empty()) return {};
      const size_t next = freeNeighbour(path.back(), on_path);
      if (next < count) {
        on_path[next] = true;
        path.push_back(next);
        continue;
      }
      if (path.size() == count && std::find(near.begin(), near.end(), path.front()) != near.end()) {
        return path;
      }
      const auto turn = std::find(path.begin(), path.end(), near[below(near.size())]);
      std::reverse(turn + 1, path.end());
      spent_ += count;
    }
    return {};
  }

  const std::vector<int>& servers_;
  std::vector<std::vector<size_t>> neighbours_;
  std::map<std::pair<size_t, size_t>, int> passed_;
  std::set<std::vector<size_t>> seen_;
  size_t spent_ = 0;
  std::minstd_rand random_{1};
};

bool isWhole(const plan::Ring& ring, const Candidate& candidate,
             const std::function<int(int, int)>& planned_hops) {
  size_t planned = 0;
  for (size_t i = 0; i < ring.servers.size(); ++i) {
    planned += static_cast<size_t>(
        planned_hops(ring.servers[i], ring.servers[(i + 1) % ring.servers.size()]));
  }
  return candidate.links.size() <= planned;
}

}  // namespace

double busiestLink(const std::vector<plan::Ring>& rings, const std::vector<LinkLeft>& links) {
  const Graph graph(links);
  std::vector<Candidate> candidates;
  std::vector<double> shares;
  for (const plan::Ring& ring : rings) {
    candidates.push_back(candidateOf(ring.servers, graph));
    shares.push_back(ring.share);
  }
  return largestOf(usesOf(candidates, shares, graph.rates));
}

std::vector<plan::Ring> remainingRings(const std::vector<plan::Ring>& planned,
                                       const std::function<int(int, int)>& planned_hops,
                                       const std::vector<LinkLeft>& links) {
  if (planned.empty() || planned.front().servers.size() < 2) return planned;
  const Graph graph(links);
  std::vector<Candidate> all;
  std::vector<Candidate> whole;
  for (const plan::Ring& ring : planned) {
    all.push_back(candidateOf(ring.servers, graph));
    if (isWhole(ring, all.back(), planned_hops)) whole.push_back(all.back());
  }
  const auto slow = [&](const Candidate& ring) {
    return std::any_of(ring.links.begin(), ring.links.end(),
                       [&](size_t link) { return graph.slow(link); });
  };
  if (whole.size() == all.size() && std::none_of(all.begin(), all.end(), slow)) return planned;
  std::vector<Candidate> with_new = whole;
  if (planned.front().servers.size() > 2) {
    for (const std::vector<int>& cycle :
         CycleSearch(planned.front().servers, graph).find(kCyclesPerRing * planned.size())) {
      with_new.push_back(candidateOf(cycle, graph));
      with_new.push_back(candidateOf({cycle.rbegin(), cycle.rend()}, graph));
    }
  }
  const size_t most = planned.size() + kMoreRings;
  Packing best = packed(whole, graph.rates, most);
  double least = best.busiest;
  for (auto& [rings, price] : {std::pair(with_new, kPriceOfNew), std::pair(all, kPriceOfDetours)}) {
    Packing other = packed(rings, graph.rates, most);
    if (other.busiest * price >= least) continue;
    least = other.busiest * price;
    best = std::move(other);
  }
  std::vector<plan::Ring> rings;
  for (size_t r = 0; r < best.rings.size(); ++r) {
    rings.push_back({best.rings[r].servers, best.shares[r]});
  }
  return rings;
}

}  // namespace topoopt
