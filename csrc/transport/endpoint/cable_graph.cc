#include "transport/endpoint/cable_graph.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

namespace topoopt {
namespace {

constexpr size_t kMostNames = 4;  // of cables in a message

}  // namespace

const char* textOf(Loss loss) {
  switch (loss) {
    case Loss::kClosed:
      return "closed by the other end";
    case Loss::kSilent:
      return "silent";
    case Loss::kCarrier:
      return "without carrier";
    case Loss::kGivenUp:
      return "given up by the other end";
    case Loss::kBroken:
      break;
  }
  return "broken";
}

CableGraph::CableGraph(int rank, int size, std::vector<CableEnds> cables,
                       const std::vector<int>& servers)
    : rank_(rank),
      size_(size),
      cables_(std::move(cables)),
      servers_(servers),
      hops_from_(static_cast<size_t>(size)),
      hops_to_(static_cast<size_t>(size)),
      members_(static_cast<size_t>(size)),
      ends_(2 * cables_.size()),
      next_hop_(static_cast<size_t>(size), -1) {
  if (!servers.empty() && servers.size() != static_cast<size_t>(size)) {
    throw std::invalid_argument("servers: " + std::to_string(servers.size()) + " entries for " +
                                std::to_string(size) + " ranks");
  }
  for (size_t i = 0; i < cables_.size(); ++i) {
    const CableEnds& cable = cables_[i];
    for (const int end : {cable.a, cable.b}) {
      if (end >= 0 && end < size) continue;
      throw std::invalid_argument("cables[" + std::to_string(i) + "]: rank " + std::to_string(end) +
                                  " is not in 0.." + std::to_string(size - 1));
    }
    const int number = static_cast<int>(i);
    hops_from_[cable.a].push_back({cable.b, number});
    hops_to_[cable.b].push_back({cable.a, number});
    if (!cable.duplex) continue;
    hops_from_[cable.b].push_back({cable.a, number});
    hops_to_[cable.a].push_back({cable.b, number});
  }
  if (servers_.empty()) {
    servers_.resize(static_cast<size_t>(size));
    std::iota(servers_.begin(), servers_.end(), 0);
  }
  std::map<int, std::vector<int>> of_server;
  for (size_t r = 0; r < servers.size(); ++r) of_server[servers[r]].push_back(static_cast<int>(r));
  for (const auto& [server, ranks] : of_server) {
    for (const int member : ranks) {
      for (const int other : ranks) {
        if (other != member) members_[member].push_back(other);
      }
    }
  }
  findWays();
}

// The end of the cable at the rank, nullptr if there is none.
CableGraph::End* CableGraph::endOf(int cable, int rank) {
  if (cable < 0 || static_cast<size_t>(cable) >= cables_.size()) return nullptr;
  const CableEnds& ends = cables_[cable];
  if (rank != ends.a && rank != ends.b) return nullptr;
  return &ends_[2 * cable + (rank == ends.a ? 0 : 1)];
}

uint64_t CableGraph::numberAt(int cable, int rank) const {
  return ends_[2 * cable + (rank == cables_[cable].a ? 0 : 1)].number;
}

bool CableGraph::takeSpeed(const CableSpeed& report) {
  End* const end = endOf(report.cable, report.end);
  if (end == nullptr || report.number <= end->speed_number) return false;
  if (!(report.speed > 0 && report.speed <= 1)) return false;
  end->speed_number = report.number;
  end->speed = report.speed;
  findWays();
  return true;
}

bool CableGraph::take(const CableReport& report) {
  End* const end = endOf(report.cable, report.end);
  if (end == nullptr || report.number() <= end->number) return false;
  const bool before = up(report.cable);
  end->number = report.number();
  end->loss = report.loss;
  const bool after = up(report.cable);
  if (before != after) {
    down_ += after ? -1 : 1;
    findWays();
  }
  return true;
}

std::vector<CableReport> CableGraph::reports() const {
  std::vector<CableReport> list;
  for (size_t i = 0; i < ends_.size(); ++i) {
    const End& end = ends_[i];
    const CableEnds& cable = cables_[i / 2];
    if (end.number == 2) continue;
    list.push_back({static_cast<int>(i / 2), i % 2 == 0 ? cable.a : cable.b, end.number / 2,
                    end.number % 2 == 0, end.loss});
  }
  return list;
}

std::vector<CableSpeed> CableGraph::speeds() const {
  std::vector<CableSpeed> list;
  for (size_t i = 0; i < ends_.size(); ++i) {
    const End& end = ends_[i];
    const CableEnds& cable = cables_[i / 2];
    if (end.speed_number == 0) continue;
    list.push_back(
        {static_cast<int>(i / 2), i % 2 == 0 ? cable.a : cable.b, end.speed_number, end.speed});
  }
  return list;
}

bool CableGraph::intact() const {
  return allUp() &&
         std::all_of(ends_.begin(), ends_.end(), [](const End& end) { return end.speed == 1.0; });
}

template <typename Speed>
std::vector<LinkLeft> CableGraph::linksAt(Speed speed) const {
  std::map<std::pair<int, int>, LinkLeft> links;
  for (size_t i = 0; i < cables_.size(); ++i) {
    const CableEnds& cable = cables_[i];
    for (const bool from_a : {true, false}) {
      if (!from_a && !cable.duplex) continue;
      const int source = servers_[from_a ? cable.a : cable.b];
      const int target = servers_[from_a ? cable.b : cable.a];
      LinkLeft& link =
          links.try_emplace({source, target}, LinkLeft{source, target, 0, 0}).first->second;
      link.planned_rate += cable.rate;
      link.rate += cable.rate * speed(static_cast<int>(i), from_a);
    }
  }
  std::vector<LinkLeft> left;
  for (const auto& [ends, link] : links) {
    if (link.rate > 0) left.push_back(link);
  }
  return left;
}

std::vector<LinkLeft> CableGraph::linksLeft() const {
  return linksAt([this](int cable, bool from_a) {
    if (!carries(cable, from_a ? cables_[cable].a : cables_[cable].b)) return 0.0;
    return ends_[2 * cable + (from_a ? 0 : 1)].speed;
  });
}

std::vector<LinkLeft> CableGraph::plannedLinks() const {
  return linksAt([](int, bool) { return 1.0; });
}

bool CableGraph::up(int cable) const {
  const End& a = ends_[2 * cable];
  const End& b = ends_[2 * cable + 1];
  return a.number == b.number && a.number % 2 == 0;
}

bool CableGraph::carries(int cable, int sender) const {
  const End& end = ends_[2 * cable + (sender == cables_[cable].a ? 0 : 1)];
  return up(cable) && (!avoids_slow_ || end.speed == 1.0);
}

bool CableGraph::linked(int source, int target) const {
  const auto& members = members_[source];
  return std::find(members.begin(), members.end(), target) != members.end() ||
         std::any_of(hops_from_[source].begin(), hops_from_[source].end(), [&](const Hop& hop) {
           return hop.rank == target && carries(hop.cable, source);
         });
}

// Hops from this rank, or to it; -1 where there is no way.
std::vector<int> CableGraph::distances(bool from_here) const {
  std::vector<int> distance(static_cast<size_t>(size_), -1);
  std::vector<int> found{rank_};
  distance[rank_] = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const int here = found[i];
    const auto reach = [&](int there) {
      if (distance[there] >= 0) return;
      distance[there] = distance[here] + 1;
      found.push_back(there);
    };
    for (const int member : members_[here]) reach(member);
    for (const Hop& hop : (from_here ? hops_from_ : hops_to_)[here]) {
      if (carries(hop.cable, from_here ? here : hop.rank)) reach(hop.rank);
    }
  }
  return distance;
}

void CableGraph::findWays() {
  const auto is_slow = [](const End& end) { return end.speed < 1.0; };
  avoids_slow_ = std::any_of(ends_.begin(), ends_.end(), is_slow);
  std::vector<int> from = distances(true);
  std::vector<int> to = distances(false);
  const auto missing = [](const std::vector<int>& list) {
    return std::find(list.begin(), list.end(), -1) != list.end();
  };
  // All ranks reach all others if they reach this one and are reached from it, so all decide alike.
  if (avoids_slow_ && (missing(from) || missing(to))) {
    avoids_slow_ = false;
    from = distances(true);
    to = distances(false);
  }
  unreachable_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    if (from[rank] < 0 || to[rank] < 0) unreachable_.push_back(rank);
  }
  findNextHops(from);
}

// From every rank back to this one, along ranks that are one hop nearer.
void CableGraph::findNextHops(const std::vector<int>& from) {
  std::fill(next_hop_.begin(), next_hop_.end(), -1);
  std::vector<int> order;
  for (int rank = 0; rank < size_; ++rank) {
    if (from[rank] > 0) order.push_back(rank);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) { return from[a] < from[b]; });
  for (const int rank : order) {
    if (from[rank] == 1) {
      next_hop_[rank] = rank;
      continue;
    }
    const auto nearer = [&](int before) { return from[before] == from[rank] - 1; };
    const auto member = std::find_if(members_[rank].begin(), members_[rank].end(), nearer);
    const auto hop = std::find_if(hops_to_[rank].begin(), hops_to_[rank].end(), [&](const Hop& h) {
      return nearer(h.rank) && carries(h.cable, h.rank);
    });
    next_hop_[rank] = next_hop_[member != members_[rank].end() ? *member : hop->rank];
  }
}

CableGraph::Cut CableGraph::cut() const {
  Cut cut;
  std::set<int> far_ranks;
  std::set<int> silent;
  size_t names = 0;
  const auto unreachable = [&](int rank) {
    return std::binary_search(unreachable_.begin(), unreachable_.end(), rank);
  };
  for (size_t i = 0; i < cables_.size(); ++i) {
    const CableEnds& cable = cables_[i];
    if (up(static_cast<int>(i)) || unreachable(cable.a) == unreachable(cable.b)) continue;
    const bool near_is_a = unreachable(cable.b);
    const int far = near_is_a ? cable.b : cable.a;
    const End& near_end = ends_[2 * i + (near_is_a ? 0 : 1)];
    const End& far_end = ends_[2 * i + (near_is_a ? 1 : 0)];
    far_ranks.insert(far);
    // A loss that this side has not yet reported can have any cause. A far end that has reported a
    // loss by itself was running, and its host closed the cable on its request.
    const bool given_up = far_end.number % 2 == 1 && far_end.loss != Loss::kClosed;
    const bool closed = near_end.number % 2 == 1 && near_end.loss == Loss::kClosed && !given_up;
    if (!closed) silent.insert(far);
    if (++names > kMostNames) continue;
    if (!cut.cables.empty()) cut.cables += ", ";
    cut.cables += textOf(cable.link) + " (" + textOf(near_end.loss) + ")";
  }
  if (names > kMostNames) cut.cables += " and " + std::to_string(names - kMostNames) + " more";
  for (const int rank : far_ranks) (silent.contains(rank) ? cut.silent : cut.gone).push_back(rank);
  return cut;
}

}  // namespace topoopt
