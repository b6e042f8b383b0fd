#include "route_control/greedy.h"

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

namespace topoopt {

void assignGreedily(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows,
                    const std::vector<int>& order, SwitchedPathLoads& loads, PathChoice& choice) {
  for (int i : order) {
    const RoutedFlow& flow = flows[i];
    int best = table.first_path[flow.pair];
    double least = loads.after(best, flow.demand);
    for (int path = best + 1; path < table.first_path[flow.pair + 1]; ++path) {
      const double congestion = loads.after(path, flow.demand);
      if (congestion < least) {
        least = congestion;
        best = path;
      }
    }
    choice[i] = best;
    loads.add(best, flow.demand);
  }
}

namespace {

// Union-find of links; a pair joins all links of its paths.
class JoinedLinks {
 public:
  explicit JoinedLinks(size_t links) : parent_(links) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  int find(int link) {
    while (parent_[link] != link) link = parent_[link] = parent_[parent_[link]];
    return link;
  }

  void join(int a, int b) { parent_[find(a)] = find(b); }

 private:
  std::vector<int> parent_;
};

void checkOrder(const std::vector<int>& order, size_t flows) {
  std::vector<char> seen(flows, 0);
  for (int i : order) {
    if (i < 0 || static_cast<size_t>(i) >= flows || seen[i] != 0) {
      throw std::invalid_argument("order: flow " + std::to_string(i) + " is none, or comes twice");
    }
    seen[i] = 1;
  }
  if (order.size() != flows) throw std::invalid_argument("order: flows are left out");
}

}  // namespace

std::vector<std::vector<int>> flowComponents(const SwitchedPaths& table,
                                             const std::vector<RoutedFlow>& flows,
                                             const std::vector<int>& order) {
  JoinedLinks joined(table.capacity.size());
  std::vector<char> seen(table.pairs(), 0);
  const auto first = [&](int pair) {
    return table.links[table.first_link[table.first_path[pair]]];
  };
  for (const RoutedFlow& flow : flows) {
    if (seen[flow.pair] != 0) continue;
    seen[flow.pair] = 1;
    const int begin = table.first_link[table.first_path[flow.pair]];
    const int end = table.first_link[table.first_path[flow.pair + 1]];
    for (int i = begin + 1; i < end; ++i) joined.join(table.links[begin], table.links[i]);
  }
  std::vector<int> number(table.capacity.size(), -1);
  std::vector<std::vector<int>> components;
  for (int i : order) {
    int& component = number[joined.find(first(flows[i].pair))];
    if (component < 0) {
      component = static_cast<int>(components.size());
      components.emplace_back();
    }
    components[component].push_back(i);
  }
  return components;
}

PathChoice greedyPaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows,
                       const std::vector<int>& order, int threads) {
  checkOrder(order, flows.size());
  if (threads < 1) {
    throw std::invalid_argument("threads: " + std::to_string(threads) + " is not at least 1");
  }
  SwitchedPathLoads loads(table);  // components share no links
  PathChoice choice(flows.size(), -1);
  const auto components = flowComponents(table, flows, order);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < components.size(); i = next++) {
      assignGreedily(table, flows, components[i], loads, choice);
    }
  };
  std::vector<std::thread> others;
  const size_t wanted = std::min(static_cast<size_t>(threads), components.size());
  for (size_t i = 1; i < wanted; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return choice;
}

}  // namespace topoopt
