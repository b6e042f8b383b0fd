#include "plan/graph_hops.h"

#include <algorithm>
#include <iterator>

namespace topoopt {

std::vector<std::vector<ShardHop>> hopsByOrigin(const GatherPlan& plan) {
  std::vector<std::vector<ShardHop>> hops(plan.received.size());
  for (size_t server = 0; server < plan.received.size(); ++server) {
    for (const Piece& piece : plan.received[server]) {
      hops[piece.origin].push_back(
          {piece.sender, static_cast<int>(server), piece.first, piece.end, piece.step});
    }
  }
  return hops;
}

OriginHops::OriginHops(const GatherPlan& plan, const std::vector<ShardHop>& pieces)
    : units_(plan.units),
      pieces_(pieces),
      own_cuts_(plan.received.size()),
      cuts_(own_cuts_.size()) {
  for (const ShardHop& piece : pieces) {
    for (const int32_t unit : {piece.first, piece.end}) {
      if (unit == 0 || unit == units_) continue;
      own_cuts_[piece.to].push_back(unit);
      cuts_[piece.to].push_back(unit);
      cuts_[piece.from].push_back(unit);
    }
  }
  for (auto* cuts : {&own_cuts_, &cuts_}) {
    for (Cuts& list : *cuts) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  }
}

template <typename CutsOf>
std::vector<ShardHop> OriginHops::cut(int server, CutsOf cuts_of) const {
  std::vector<ShardHop> list;
  for (const ShardHop& piece : pieces_) {
    if (piece.from != server && piece.to != server) continue;
    for (const auto& [first, end] : parts(piece.first, piece.end, cuts_of(piece))) {
      list.push_back({piece.from, piece.to, first, end, piece.step});
    }
  }
  return list;
}

std::vector<ShardHop> OriginHops::gathering(int server) const {
  return cut(server, [&](const ShardHop& piece) { return own_cuts_[piece.from]; });
}

std::vector<ShardHop> OriginHops::scattering(int server) const {
  return cut(server, [&](const ShardHop& piece) {
    const Cuts &near = cuts_[piece.from], &far = cuts_[piece.to];
    Cuts both;
    std::set_union(near.begin(), near.end(), far.begin(), far.end(), std::back_inserter(both));
    return both;
  });
}

int32_t OriginHops::startOf(const Cuts& cuts, int32_t unit) {
  const auto above = std::upper_bound(cuts.begin(), cuts.end(), unit);
  return above == cuts.begin() ? 0 : *std::prev(above);
}

OriginHops::Parts OriginHops::parts(int32_t first, int32_t end, const Cuts& cuts) {
  Parts list;
  for (auto cut = std::upper_bound(cuts.begin(), cuts.end(), first);
       cut != cuts.end() && *cut < end; ++cut) {
    list.emplace_back(first, *cut);
    first = *cut;
  }
  list.emplace_back(first, end);
  return list;
}

}  // namespace topoopt
