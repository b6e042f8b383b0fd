#include "topology/ring_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace topoopt {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

}  // namespace

RingSearch::RingSearch(RingUnion start, std::vector<int64_t> weights, uint64_t seed)
    : servers_(start.servers),
      symmetry_(start.symmetry),
      orbits_(start.symmetry > 0 ? start.servers / start.symmetry : 0),
      duplex_(start.duplex),
      random_(seed),
      weights_(std::move(weights)) {
  check(start);
  sources_.resize(orbits_);
  std::iota(sources_.begin(), sources_.end(), 0);
  next_slot_.assign(servers_, 0);
  for (const std::vector<int>& ring : start.rings) {
    const int size = static_cast<int>(ring.size()) / symmetry_;
    const int shift = symmetry_ == 1 ? 0 : (ring[size] - ring[0] + servers_) % servers_;
    state_.cycles.push_back({{ring.begin(), ring.begin() + size}, shift});
    slots_.emplace_back(servers_, -1);
    for (const int server : ring) {
      slots_.back()[server] = takeSlot(server);
      if (duplex_) takeSlot(server);
    }
  }
  for (const auto& [from, to] : start.links) {
    state_.links.push_back(
        {{from, from >= 0 && duplex_ ? takeSlot(from) : 0}, {to, to >= 0 ? takeSlot(to) : 0}});
  }
  in_links_ = InLinks(servers_, *std::max_element(next_slot_.begin(), next_slot_.end()));
  for (size_t i = 0; i < state_.cycles.size(); ++i) lay(i);
  for (const FreeLink& link : state_.links) lay(link);
  cost_ = best_cost_ = measure();
  best_state_ = state_;
}

void RingSearch::check(const RingUnion& start) const {
  if (servers_ < 2 || servers_ > kMaxServers) {
    fail("servers: " + std::to_string(servers_) + " is not in 2.." + std::to_string(kMaxServers));
  }
  if (symmetry_ < 1 || servers_ % symmetry_ != 0) {
    fail("symmetry: " + std::to_string(symmetry_) + " does not divide " + std::to_string(servers_) +
         " servers");
  }
  if (start.rings.empty() && start.links.empty()) fail("rings: neither rings nor links");
  for (size_t i = 0; i < start.rings.size(); ++i) {
    checkRing(start.rings[i], "rings[" + std::to_string(i) + "]: ");
  }
  for (size_t i = 0; i < start.links.size(); ++i) {
    checkLink(start.links[i], "links[" + std::to_string(i) + "]: ");
  }
  checkWeights();
}

void RingSearch::checkRing(const std::vector<int>& ring, const std::string& where) const {
  std::vector<char> seen(servers_, 0);
  for (const int server : ring) {
    if (server < 0 || server >= servers_ || seen[server]++) {
      fail(where + "server " + std::to_string(server) + " is unknown or there twice");
    }
  }
  if (ring.size() < 2) fail(where + "fewer than two servers");
  if (symmetry_ == 1) return;
  if (static_cast<int>(ring.size()) != servers_) fail(where + "does not visit every server");
  const int shift = (ring[orbits_] - ring[0] + servers_) % servers_;
  for (int p = orbits_; p < servers_; ++p) {
    if (ring[p] != (ring[p - orbits_] + shift) % servers_ || shift % orbits_ != 0) {
      fail(where + "is not the same when moved on by " + std::to_string(orbits_));
    }
  }
}

void RingSearch::checkLink(const std::pair<int, int>& link, const std::string& where) const {
  const auto& [from, to] = link;
  if (symmetry_ > 1) fail(where + "not possible with a symmetry");
  if (from < -1 || from >= servers_ || to < -1 || to >= servers_) fail(where + "an unknown server");
  if (from == to) fail(where + "connects a server to itself");
}

void RingSearch::checkWeights() const {
  if (weights_.empty()) return;
  if (symmetry_ > 1) fail("weights: not possible with a symmetry");
  if (weights_.size() != static_cast<size_t>(servers_) * servers_) {
    fail("weights: " + std::to_string(weights_.size()) + " entries are not servers squared");
  }
  const int64_t largest = (int64_t{1} << 50) / servers_ / servers_ / servers_;
  for (const int64_t weight : weights_) {
    if (weight < 0 || weight > largest) {
      fail("weights: " + std::to_string(weight) + " is not in 0.." + std::to_string(largest));
    }
  }
}

int RingSearch::moved(int server, int by) const {
  const int sum = server + by;
  return sum >= servers_ ? sum - servers_ : sum;
}

// Position 0 .. size of a base; after its end the next repetition begins.
int RingSearch::at(const Cycle& cycle, int position) const {
  return position < static_cast<int>(cycle.base.size()) ? cycle.base[position]
                                                        : moved(cycle.base[0], cycle.shift);
}

void RingSearch::lay(size_t index) {
  const Cycle& cycle = state_.cycles[index];
  const std::vector<int>& slots = slots_[index];
  for (int p = 0; p < static_cast<int>(cycle.base.size()); ++p) {
    int from = at(cycle, p);
    int to = at(cycle, p + 1);
    for (int t = 0; t < symmetry_; ++t) {
      in_links_.row(to)[slots[to]] = from;
      if (duplex_) in_links_.row(from)[slots[from] + 1] = to;
      from = moved(from, orbits_);
      to = moved(to, orbits_);
    }
  }
}

void RingSearch::lay(const FreeLink& link) {
  const auto [from, to] = link;
  const bool joined = from.server >= 0 && to.server >= 0;
  if (to.server >= 0) in_links_.row(to.server)[to.slot] = joined ? from.server : to.server;
  if (duplex_ && from.server >= 0) {
    in_links_.row(from.server)[from.slot] = joined ? to.server : from.server;
  }
}

int64_t RingSearch::measure() {
  if (!weights_.empty()) return counter_.weightedSum(in_links_, sources_, weights_);
  const HopSummary found = counter_.summary(in_links_, sources_);
  return found.sum + found.unreachable * servers_;
}

bool RingSearch::changeCycle(size_t index) {
  Cycle& cycle = state_.cycles[index];
  std::vector<int>& base = cycle.base;
  const int size = static_cast<int>(base.size());
  saved_ = cycle;
  if (size * symmetry_ < 3) return false;
  if (symmetry_ > 1 && (size == 1 || random_.below(4 * size) == 0)) {
    const int turns = 1 + random_.below(symmetry_ - 1);
    if (std::gcd(turns, symmetry_) != 1) return false;
    cycle.shift = turns * orbits_;
    return true;
  }
  if (size < 2) return false;
  const int kind = random_.below(8);
  if (kind == 0) {
    const int i = random_.below(size), j = random_.below(size);
    if (i == j) return false;
    std::swap(base[i], base[j]);
    return true;
  }
  // If a window crosses the end of the base, rotate the base.
  const int turn = random_.below(size);
  for (int p = 0; p < turn; ++p) base[p] = moved(base[p], cycle.shift);
  std::rotate(base.begin(), base.begin() + turn, base.end());
  const int length = 1 + random_.below(size - 1);  // of the window, base[0 .. length)
  if (duplex_ ? kind < 6 : symmetry_ > 1 && kind < 3) {
    if (duplex_ && length > 1) std::reverse(base.begin(), base.begin() + length);
    if (symmetry_ > 1) {
      const int by = random_.below(symmetry_) * orbits_;
      for (int p = 0; p < length; ++p) base[p] = moved(base[p], by);
    }
    return true;
  }
  // Swap two neighbouring windows.
  if (size < 3) return false;
  const int first = 1 + random_.below(size - 2);
  const int both = first + 1 + random_.below(size - first - 1);
  std::rotate(base.begin(), base.begin() + first, base.begin() + both);
  return true;
}

bool RingSearch::changeLinks() {
  const int count = static_cast<int>(state_.links.size());
  if (count < 2) return false;
  const size_t i = random_.below(count), j = random_.below(count);
  if (i == j) return false;
  FreeLink& a = state_.links[i];
  FreeLink& b = state_.links[j];
  if (duplex_ && random_.below(2)) std::swap(b.from, b.to);
  std::swap(a.to, b.to);
  switched_ = {i, j};
  return true;
}

bool RingSearch::keeps(int64_t proposed, double temperature) {
  if (proposed <= cost_) return true;
  return random_.unit() < std::exp(static_cast<double>(cost_ - proposed) / temperature);
}

void RingSearch::anneal(int64_t work, double hot, double cold, int64_t enough) {
  if (!(cold > 0) || !(hot >= cold)) {
    throw std::invalid_argument("hot, cold: " + std::to_string(hot) + ", " + std::to_string(cold) +
                                " are not above 0 and falling");
  }
  const int rings = static_cast<int>(state_.cycles.size());
  const int ring_moves = std::accumulate(
      state_.cycles.begin(), state_.cycles.end(), 0,
      [](int sum, const Cycle& cycle) { return sum + static_cast<int>(cycle.base.size()); });
  const int kinds = ring_moves + static_cast<int>(state_.links.size());
  const double fall = std::log(cold / hot);
  const int64_t before = operations();
  for (int64_t done = 0; done < work && best_cost_ > enough; done = operations() - before) {
    const double part = static_cast<double>(done) / static_cast<double>(work);
    const double temperature = hot * std::exp(fall * part);
    ++moves_;
    const bool is_ring = random_.below(kinds) < ring_moves;
    const size_t index = is_ring ? random_.below(rings) : 0;
    const bool changed = is_ring ? changeCycle(index) : changeLinks();
    const auto redraw = [&] {
      if (is_ring) {
        lay(index);
      } else {
        lay(state_.links[switched_.first]);
        lay(state_.links[switched_.second]);
      }
    };
    if (changed) {
      redraw();
      const int64_t proposed = measure();
      if (keeps(proposed, temperature)) {
        cost_ = proposed;
        ++accepted_;
        if (cost_ < best_cost_) {
          best_cost_ = cost_;
          best_state_ = state_;
        }
        continue;
      }
    }
    if (is_ring) {
      state_.cycles[index] = saved_;
    } else if (changed) {
      std::swap(state_.links[switched_.first].to, state_.links[switched_.second].to);
    }
    if (changed) redraw();
  }
}

RingUnion RingSearch::best() const {
  RingUnion found{servers_, symmetry_, duplex_, {}, {}};
  for (const Cycle& cycle : best_state_.cycles) {
    std::vector<int> ring = cycle.base;
    ring.reserve(cycle.base.size() * symmetry_);
    for (int t = 1; t < symmetry_; ++t) {
      for (size_t p = 0; p < cycle.base.size(); ++p) {
        ring.push_back(moved(ring[ring.size() - cycle.base.size()], cycle.shift));
      }
    }
    found.rings.push_back(std::move(ring));
  }
  for (const FreeLink& link : best_state_.links) {
    if (link.from.server != link.to.server) {
      found.links.emplace_back(link.from.server, link.to.server);
      continue;
    }
    if (link.from.server < 0) continue;
    found.links.emplace_back(link.from.server, -1);
    found.links.push_back(duplex_ ? found.links.back() : std::pair{-1, link.to.server});
  }
  return found;
}

}  // namespace topoopt
