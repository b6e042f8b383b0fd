#include "plan/cut_bound.h"

#include <numeric>
#include <stdexcept>
#include <string>

#include "plan/sink_flow.h"

namespace topoopt {
namespace {

constexpr int64_t kMostShards = int64_t{1} << 20;

void checkShards(int servers, const std::vector<int>& shards) {
  if (shards.size() != static_cast<size_t>(servers)) {
    throw std::invalid_argument("shards: " + std::to_string(shards.size()) + " numbers for " +
                                std::to_string(servers) + " servers");
  }
  int64_t sum = 0;
  for (const int number : shards) {
    if (number < 0) {
      throw std::invalid_argument("shards: " + std::to_string(number) + " is negative");
    }
    sum += number;
  }
  if (sum < 1 || sum > kMostShards) {
    throw std::invalid_argument("shards: a sum of " + std::to_string(sum) + ", not 1 to " +
                                std::to_string(kMostShards));
  }
}

// Finds the largest ratio of shards to rate by Newton's method (Dinkelbach, 1967): a ratio is tried
// by one flow to every server, and each flow that falls short has a slower cut.
class CutSearch {
 public:
  CutSearch(const IntegerLinks& links, const std::vector<int>& shards)
      : links_(links),
        shards_(shards),
        flows_(links),
        capacity_(links.count()),
        supply_(links.servers) {}

  SlowestCut slowest() {
    std::vector<char> inside(links_.servers, 1);
    for (int v = 0; v < links_.servers; ++v) {
      inside[v] = 0;
      take(inside);
      inside[v] = 1;
    }
    for (int sink = 0; sink < links_.servers; ++sink) {
      while (fallsShort(sink)) {
        for (int v = 0; v < links_.servers; ++v) inside[v] = !flows_.onSinkSide(v);
        take(inside);
      }
    }
    return std::move(slowest_);
  }

 private:
  bool fallsShort(int sink) {
    for (size_t e = 0; e < capacity_.size(); ++e) {
      capacity_[e] = slowest_.shards * links_.rate[e];
    }
    for (size_t v = 0; v < supply_.size(); ++v) supply_[v] = slowest_.rate * shards_[v];
    SinkFlow flow{std::vector<int64_t>(capacity_.size(), 0),
                  std::vector<int64_t>(supply_.size(), 0)};
    return flows_.update(flow, sink, capacity_, supply_) > 0;
  }

  // Makes the cut behind these servers the slowest if it is slower.
  void take(const std::vector<char>& inside) {
    SlowestCut cut{0, 0, {}};
    int outside = -1;
    for (int v = 0; v < links_.servers; ++v) {
      if (inside[v]) {
        cut.shards += shards_[v];
        cut.servers.push_back(v);
      } else {
        outside = v;
      }
    }
    for (size_t e = 0; e < links_.count(); ++e) {
      if (inside[links_.source[e]] && !inside[links_.target[e]]) cut.rate += links_.rate[e];
    }
    if (cut.shards == 0) return;
    if (cut.rate == 0) {
      throw std::invalid_argument("links: no path from every server with shards to server " +
                                  std::to_string(outside));
    }
    const int64_t divisor = std::gcd(cut.shards, cut.rate);
    cut.shards /= divisor;
    cut.rate /= divisor;
    if (cut.shards * slowest_.rate > slowest_.shards * cut.rate) slowest_ = std::move(cut);
  }

  const IntegerLinks& links_;
  const std::vector<int>& shards_;
  FlowUpdater flows_;
  std::vector<int64_t> capacity_;
  std::vector<int64_t> supply_;
  SlowestCut slowest_;
};

}  // namespace

SlowestCut slowestCut(const IntegerLinks& links, const std::vector<int>& shards) {
  checkShards(links.servers, shards);
  return CutSearch(links, shards).slowest();
}

CutBound cutBound(int servers, const std::vector<RatedLink>& links,
                  const std::vector<int>& shards) {
  const IntegerLinks exact(servers, links);
  SlowestCut cut = slowestCut(exact, shards);
  return {static_cast<double>(cut.shards) / static_cast<double>(cut.rate) / exact.unit,
          std::move(cut.servers)};
}

}  // namespace topoopt
