#include "route_control/improvement.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/random.h"

namespace topoopt {

namespace {

constexpr int kMostTried = 4000;  // flows tried per chain of changes
constexpr int kDeepest = 40;      // flows in one chain of changes
constexpr int kMostOnALink = 32;  // flows of a link that are tried

class Improvement {
 public:
  Improvement(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows, PathChoice& choice,
              uint64_t seed)
      : table_(table),
        flows_(flows),
        choice_(choice),
        random_(seed),
        load_(table.capacity.size(), 0.0),
        flows_of_(table.capacity.size()),
        is_moved_(flows.size(), 0) {
    for (size_t flow = 0; flow < flows.size(); ++flow) put(static_cast<int>(flow), choice[flow]);
  }

  double most() const {
    double most = 0;
    for (size_t link = 0; link < load_.size(); ++link) {
      most = std::max(most, congestion(static_cast<int>(link)));
    }
    return most;
  }

  // Until no most congested link improves, or all are within `bound`.
  void descend(double bound) {
    for (double most_now = most(); most_now > bound * (1 + kSame); most_now = most()) {
      limit_ = most_now * (1 - kSame);
      bool relieved = false;
      for (size_t link = 0; link < load_.size(); ++link) {
        while (congestion(static_cast<int>(link)) >= limit_) {
          if (!relieve(static_cast<int>(link))) return;
          relieved = true;
        }
      }
      if (!relieved) return;
    }
  }

  // Moves a random flow of a most congested link.
  void disturb() {
    const double most_now = most() * (1 - kSame);
    std::vector<int> busiest;
    for (size_t link = 0; link < load_.size(); ++link) {
      if (congestion(static_cast<int>(link)) >= most_now) busiest.push_back(static_cast<int>(link));
    }
    const auto& on = flows_of_[busiest[random_.below(static_cast<int>(busiest.size()))]];
    const int flow = on[random_.below(static_cast<int>(on.size()))];
    const int pair = flows_[flow].pair;
    const int to = table_.first_path[pair] + random_.below(table_.pathCount(pair));
    if (to != choice_[flow]) move(flow, to);
  }

  void restore(const PathChoice& before) {
    for (size_t flow = 0; flow < before.size(); ++flow) {
      if (choice_[flow] != before[flow]) move(static_cast<int>(flow), before[flow]);
    }
  }

 private:
  double congestion(int link) const { return load_[link] / table_.capacity[link]; }

  template <typename Visit>
  void eachLink(int path, Visit visit) const {
    for (int i = table_.first_link[path]; i < table_.first_link[path + 1]; ++i) {
      visit(table_.links[i]);
    }
  }

  void put(int flow, int path) {
    choice_[flow] = path;
    eachLink(path, [&](int link) {
      load_[link] += flows_[flow].demand;
      flows_of_[link].push_back(flow);
    });
  }

  void move(int flow, int path) {
    eachLink(choice_[flow], [&](int link) {
      auto& on = flows_of_[link];
      *std::find(on.begin(), on.end(), flow) = on.back();
      on.pop_back();
      load_[link] = on.empty() ? 0.0 : load_[link] - flows_[flow].demand;
    });
    put(flow, path);
  }

  bool relieve(int link) {
    tried_ = 0;
    const std::vector<int> on = sample(link);
    return std::any_of(on.begin(), on.end(), [&](int flow) { return moveAway(flow, link, 0); });
  }

  // Flows of the link, largest first; a sample if there are many.
  std::vector<int> sample(int link) {
    std::vector<int> on = flows_of_[link];
    if (static_cast<int>(on.size()) > kMostOnALink) {
      for (int i = 0; i < kMostOnALink; ++i) {
        std::swap(on[i], on[i + random_.below(static_cast<int>(on.size()) - i)]);
      }
      on.resize(kMostOnALink);
    }
    return on;
  }

  // Tries to move `flow` to a path without `link` within the limit. If a link of that path is too
  // congested, one of its flows moves in turn, recursively.
  bool moveAway(int flow, int link, int depth) {
    if (is_moved_[flow] != 0 || ++tried_ > kMostTried) return false;
    const int from = choice_[flow];
    const int pair = flows_[flow].pair;
    std::vector<std::pair<double, int>> ways;  // congestion of its worst link, path
    for (int path = table_.first_path[pair]; path < table_.first_path[pair + 1]; ++path) {
      bool avoids = path != from;
      double worst = 0;
      eachLink(path, [&](int other) {
        avoids &= other != link;
        worst = std::max(worst, (load_[other] + flows_[flow].demand) / table_.capacity[other]);
      });
      if (avoids) ways.emplace_back(worst, path);
    }
    std::sort(ways.begin(), ways.end());
    is_moved_[flow] = 1;
    bool done = false;
    for (const auto& [worst, path] : ways) {
      move(flow, path);
      done = settle(path, depth);
      if (done) break;
      move(flow, from);
      if (tried_ > kMostTried) break;
    }
    is_moved_[flow] = 0;
    return done;
  }

  // After a flow has moved onto `path`: relieves its congested links, if possible.
  bool settle(int path, int depth) {
    int full = -1;
    int count = 0;
    eachLink(path, [&](int link) {
      if (congestion(link) >= limit_) {
        full = link;
        ++count;
      }
    });
    if (count == 0) return true;
    if (count > 1 || depth >= kDeepest) return false;
    const std::vector<int> on = sample(full);
    return std::any_of(on.begin(), on.end(), [&](int flow) {
      const double left = (load_[full] - flows_[flow].demand) / table_.capacity[full];
      return left < limit_ && moveAway(flow, full, depth + 1);
    });
  }

  const SwitchedPaths& table_;
  const std::vector<RoutedFlow>& flows_;
  PathChoice& choice_;
  Random random_;
  std::vector<double> load_;
  std::vector<std::vector<int>> flows_of_;  // per link
  std::vector<char> is_moved_;              // in the current chain
  double limit_ = 0;
  int tried_ = 0;
};

}  // namespace

void improvePaths(const SwitchedPaths& table, const std::vector<RoutedFlow>& flows, double bound,
                  int64_t moves, uint64_t seed, PathChoice& choice) {
  if (flows.empty()) return;
  Improvement improvement(table, flows, choice, seed);
  improvement.descend(bound);
  PathChoice best = choice;
  double least = improvement.most();
  Random random(seed);
  for (int64_t i = 0; i < moves && least > bound * (1 + kSame); ++i) {
    for (int k = 1 + random.below(3); k > 0; --k) improvement.disturb();
    improvement.descend(bound);
    const double now = improvement.most();
    if (now <= least * (1 + kSame)) {
      least = std::min(least, now);
      best = choice;
    } else {
      improvement.restore(best);
    }
  }
}

}  // namespace topoopt
