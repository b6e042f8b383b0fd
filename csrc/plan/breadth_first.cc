#include "plan/breadth_first.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace topoopt {
namespace {

// Multiples of all numbers of links up to this one divide a shard exactly.
constexpr int32_t kMostExactLinks = 10;
// Fractions for unequal rates.
constexpr int32_t kFineUnits = 5040;

// A load rounded down may serve nobody fully; the next guess is larger by this fraction at least.
constexpr double kRounding = 1e-9;

struct InLink {
  int source;
  double rate;
};

// By target, ascending sources; parallel links are added up.
std::vector<std::vector<InLink>> inLinks(int servers, const std::vector<RatedLink>& links) {
  checkLinks(servers, links);
  std::vector<std::map<int, double>> rates(static_cast<size_t>(servers));
  for (const RatedLink& link : links) rates[link.target][link.source] += link.rate;
  std::vector<std::vector<InLink>> in(rates.size());
  for (size_t target = 0; target < rates.size(); ++target) {
    for (const auto& [source, rate] : rates[target]) in[target].push_back({source, rate});
  }
  return in;
}

// distances[origin][server] in links; -1: not reached.
std::vector<std::vector<int>> distancesFrom(const std::vector<int>& origins,
                                            const std::vector<std::vector<InLink>>& in) {
  std::vector<std::vector<int>> out(in.size());
  for (size_t target = 0; target < in.size(); ++target) {
    for (const InLink& link : in[target]) out[link.source].push_back(static_cast<int>(target));
  }
  std::vector<std::vector<int>> distances;
  for (const int origin : origins) {
    std::vector<int>& far = distances.emplace_back(in.size(), -1);
    std::vector<int> found{origin};
    far[origin] = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      for (const int next : out[found[i]]) {
        if (far[next] >= 0) continue;
        far[next] = far[found[i]] + 1;
        found.push_back(next);
      }
    }
    if (found.size() < in.size()) {
      const auto lost = std::find(far.begin(), far.end(), -1) - far.begin();
      throw std::invalid_argument("links: no path from server " + std::to_string(origin) +
                                  " to server " + std::to_string(lost));
    }
  }
  return distances;
}

// The receptions of one server in one step: groups of origins that the same in-links can deliver.
class StepSplit {
 public:
  StepSplit(const std::vector<InLink>& in, int32_t units) : in_(in), units_(units) {}

  void add(int origin, std::vector<int> links) { groups_[std::move(links)].push_back(origin); }

  // Calls piece(origin, link, first, end) with the best split.
  template <typename Piece>
  void solve(Piece piece) {
    assign(leastLoad());
    size_t row = 0;
    for (const auto& [links, origins] : groups_) {
      // Units of the group, origin by origin, fill one link after the other.
      size_t at = 0;
      int64_t used = 0;
      for (const int origin : origins) {
        int32_t first = 0;
        while (first < units_) {
          while (used == flow_[row][links[at]]) {
            ++at;
            used = 0;
          }
          const auto taken =
              static_cast<int32_t>(std::min<int64_t>(units_ - first, flow_[row][links[at]] - used));
          piece(origin, links[at], first, first + taken);
          first += taken;
          used += taken;
        }
      }
      ++row;
    }
  }

 private:
  // By Hall's theorem, the load is the largest of any set of groups over the rates of its links. A
  // flow at a lower load leaves such a set unserved, which gives the next guess.
  double leastLoad() {
    double units = 0;
    for (const auto& [links, origins] : groups_) {
      units += static_cast<double>(origins.size()) * units_;
    }
    double rate = 0;
    for (const InLink& link : in_) rate += link.rate;
    double load = units / rate;
    while (true) {
      if (assign(load)) return load;
      double set_units = 0;
      double set_rate = 0;
      size_t row = 0;
      for (const auto& [links, origins] : groups_) {
        if (unserved_groups_[row++]) set_units += static_cast<double>(origins.size()) * units_;
      }
      for (size_t i = 0; i < in_.size(); ++i) {
        if (unserved_links_[i]) set_rate += in_[i].rate;
      }
      load = std::max(set_units / set_rate, load * (1 + kRounding));
    }
  }

  // Finds a largest flow from groups to links of capacity ceil(load x rate). Returns whether it
  // serves all groups; if not, marks the groups and links that unserved units reach.
  bool assign(double load) {
    flow_.assign(groups_.size(), std::vector<int64_t>(in_.size(), 0));
    std::vector<int64_t> spare;
    for (const InLink& link : in_) {
      spare.push_back(static_cast<int64_t>(std::ceil(load * link.rate - 1e-6)));
    }
    bool all = true;
    unserved_groups_.assign(groups_.size(), false);
    unserved_links_.assign(in_.size(), false);
    size_t row = 0;
    for (const auto& [links, origins] : groups_) {
      int64_t left = static_cast<int64_t>(origins.size()) * units_;
      while (left > 0) {
        const int64_t moved = augment(row, left, spare);
        if (moved == 0) break;
        left -= moved;
      }
      if (left > 0) {
        all = false;
        for (size_t i = 0; i < groups_.size(); ++i) {
          if (seen_groups_[i]) unserved_groups_[i] = true;
        }
        for (size_t i = 0; i < in_.size(); ++i) {
          if (seen_links_[i]) unserved_links_[i] = true;
        }
      }
      ++row;
    }
    return all;
  }

  // Sends up to `most` units of a group to a link with spare capacity, by a shortest augmenting
  // path.
  int64_t augment(size_t row, int64_t most, std::vector<int64_t>& spare) {
    seen_groups_.assign(groups_.size(), false);
    seen_links_.assign(in_.size(), false);
    rows_.clear();
    for (const auto& [links, origins] : groups_) rows_.push_back(&links);
    std::vector<size_t> group_of_link(in_.size());
    std::vector<size_t> link_of_group(groups_.size());
    std::vector<size_t> queue{row};
    seen_groups_[row] = true;
    for (size_t i = 0; i < queue.size(); ++i) {
      const size_t group = queue[i];
      for (const int link : *rows_[group]) {
        if (seen_links_[link]) continue;
        seen_links_[link] = true;
        group_of_link[link] = group;
        if (spare[link] > 0) return push(row, link, most, spare, group_of_link, link_of_group);
        for (size_t other = 0; other < groups_.size(); ++other) {
          if (seen_groups_[other] || flow_[other][link] == 0) continue;
          seen_groups_[other] = true;
          link_of_group[other] = static_cast<size_t>(link);
          queue.push_back(other);
        }
      }
    }
    return 0;
  }

  int64_t push(size_t row, int last, int64_t most, std::vector<int64_t>& spare,
               const std::vector<size_t>& group_of_link, const std::vector<size_t>& link_of_group) {
    int64_t amount = std::min(most, spare[last]);
    for (size_t link = last, group = group_of_link[link]; group != row;
         link = link_of_group[group], group = group_of_link[link]) {
      amount = std::min(amount, flow_[group][link_of_group[group]]);
    }
    spare[last] -= amount;
    size_t link = last;
    while (true) {
      const size_t group = group_of_link[link];
      flow_[group][link] += amount;
      if (group == row) return amount;
      link = link_of_group[group];
      flow_[group][link] -= amount;
    }
  }

  const std::vector<InLink>& in_;
  const int32_t units_;
  std::map<std::vector<int>, std::vector<int>> groups_;  // in-links, origins
  std::vector<std::vector<int64_t>> flow_;               // by group and link
  std::vector<bool> seen_groups_;
  std::vector<bool> seen_links_;
  std::vector<bool> unserved_groups_;
  std::vector<bool> unserved_links_;
  std::vector<const std::vector<int>*> rows_;
};

int32_t unitsFor(const std::vector<std::vector<InLink>>& in) {
  int32_t units = 1;
  size_t most = 1;
  bool equal = true;
  double rate = 0;
  for (const auto& links : in) {
    most = std::max(most, links.size());
    for (const InLink& link : links) {
      if (rate == 0) rate = link.rate;
      equal = equal && link.rate == rate;
    }
  }
  for (int32_t n = 2; n <= std::min(static_cast<int32_t>(most), kMostExactLinks); ++n) {
    units = std::lcm(units, n);
  }
  return equal ? units : std::max(units, kFineUnits);
}

// Smaller numbers mean the same.
void reduceUnits(GatherPlan& plan) {
  int32_t common = plan.units;
  for (const auto& pieces : plan.received) {
    for (const Piece& piece : pieces) common = std::gcd(common, std::gcd(piece.first, piece.end));
  }
  plan.units /= common;
  for (auto& pieces : plan.received) {
    for (Piece& piece : pieces) {
      piece.first /= common;
      piece.end /= common;
    }
  }
}

}  // namespace

GatherPlan breadthFirst(int servers, const std::vector<RatedLink>& links,
                        const std::vector<int>& origins) {
  std::vector<int> from = origins;
  if (from.empty()) {
    from.resize(static_cast<size_t>(servers));
    std::iota(from.begin(), from.end(), 0);
  }
  const auto in = inLinks(servers, links);
  const auto distances = distancesFrom(from, in);
  GatherPlan plan;
  plan.units = unitsFor(in);
  plan.received.resize(in.size());
  for (int server = 0; server < servers; ++server) {
    std::map<int, StepSplit> steps;
    for (size_t i = 0; i < from.size(); ++i) {
      const int step = distances[i][server] - 1;
      if (step < 0) continue;
      std::vector<int> usable;
      for (size_t link = 0; link < in[server].size(); ++link) {
        if (distances[i][in[server][link].source] == step) usable.push_back(static_cast<int>(link));
      }
      steps.try_emplace(step, in[server], plan.units).first->second.add(from[i], std::move(usable));
    }
    std::vector<Piece>& pieces = plan.received[server];
    for (auto& [number, split] : steps) {
      const auto begin = static_cast<std::ptrdiff_t>(pieces.size());
      split.solve([&, step = number](int origin, int link, int32_t first, int32_t end) {
        pieces.push_back({origin, in[server][link].source, first, end, step});
      });
      std::sort(pieces.begin() + begin, pieces.end(), [](const Piece& a, const Piece& b) {
        return std::pair{a.origin, a.first} < std::pair{b.origin, b.first};
      });
      plan.steps = std::max(plan.steps, number + 1);
    }
  }
  reduceUnits(plan);
  return plan;
}

GatherPlan oneShot(int servers) {
  GatherPlan plan;
  plan.steps = servers > 1 ? 1 : 0;
  plan.received.resize(static_cast<size_t>(servers));
  for (int server = 0; server < servers; ++server) {
    for (int origin = 0; origin < servers; ++origin) {
      if (origin != server) plan.received[server].push_back({origin, origin, 0, 1, 0});
    }
  }
  return plan;
}

PlanLoad loadOf(const GatherPlan& plan, const std::vector<RatedLink>& links) {
  std::map<std::pair<int, int>, double> rates;
  for (const RatedLink& link : links) rates[{link.source, link.target}] += link.rate;
  PlanLoad load;
  std::vector<double> busiest(static_cast<size_t>(plan.steps), 0.0);
  for (size_t server = 0; server < plan.received.size(); ++server) {
    std::map<int, double> total;
    std::map<std::pair<int, int>, double> in_step;
    for (const Piece& piece : plan.received[server]) {
      const double rate = rates.at({piece.sender, static_cast<int>(server)});
      const double seconds = static_cast<double>(piece.end - piece.first) / plan.units / rate;
      total[piece.sender] += seconds;
      in_step[{piece.step, piece.sender}] += seconds;
    }
    for (const auto& [sender, seconds] : total) {
      load.busiest_s = std::max(load.busiest_s, seconds);
    }
    for (const auto& [at, seconds] : in_step) {
      busiest[at.first] = std::max(busiest[at.first], seconds);
    }
  }
  load.steps_s = std::accumulate(busiest.begin(), busiest.end(), 0.0);
  return load;
}

std::vector<RatedLink> reversed(std::vector<RatedLink> links) {
  for (RatedLink& link : links) std::swap(link.source, link.target);
  return links;
}

}  // namespace topoopt
