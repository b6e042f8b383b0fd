#include "sim/max_min_rates.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace topoopt {

namespace {
// Rates this close below the changed level are solved again rather than kept, so that rounding
// can never keep a rate that should move.
constexpr double kMargin = 1e-9;
}  // namespace

MaxMinRates::MaxMinRates(const std::vector<double>& capacity, const PathTable& paths)
    : capacity_(capacity), paths_(paths) {
  reset();
}

void MaxMinRates::reset() {
  const size_t links = capacity_.size();
  state_.assign(paths_.size(), PathState());
  slot_.resize(paths_.useCount());
  members_.resize(links);
  for (auto& members : members_) members.clear();
  link_seen_.assign(links, 0);
  room_.resize(links);
  weight_.resize(links);
  open_.resize(links);
  changed_paths_.clear();
}

void MaxMinRates::change(int path, int delta) {
  PathState& state = state_[path];
  const bool was_active = state.count > 0;
  state.count += delta;
  if (!was_active && state.count > 0) attach(path);
  if (was_active && state.count == 0) detach(path);
  if (!state.changed) {
    state.changed = true;
    changed_paths_.push_back(path);
  }
}

void MaxMinRates::attach(int path) {
  int use = paths_.firstUse(path);
  for (const LinkUse& u : paths_.uses(path)) {
    slot_[use] = static_cast<int>(members_[u.link].size());
    members_[u.link].push_back({path, use++, u.load});
  }
}

void MaxMinRates::detach(int path) {
  int use = paths_.firstUse(path);
  for (const LinkUse& u : paths_.uses(path)) {
    auto& members = members_[u.link];
    const Member last = members.back();
    members[slot_[use]] = last;
    slot_[last.use] = slot_[use];
    members.pop_back();
    ++use;
  }
}

// Below the returned level the old filling and the new one are the same. A path that lost flows
// was stopped at its old rate, so none of its links was full before; the links of a path that
// gained flows cannot be full before capacity / (sum of all loads).
double MaxMinRates::lowestChangedLevel() const {
  double lowest = std::numeric_limits<double>::infinity();
  for (int path : changed_paths_) {
    const PathState& state = state_[path];
    if (state.solved_count > 0) lowest = std::min(lowest, state.rate);
    if (state.count <= state.solved_count) continue;
    for (const LinkUse& u : paths_.uses(path)) {
      double load = 0;
      for (const Member& m : members_[u.link]) load += state_[m.path].count * m.load;
      lowest = std::min(lowest, capacity_[u.link] / load);
    }
  }
  return lowest * (1 - kMargin);
}

void MaxMinRates::see(int path) {
  for (const LinkUse& u : paths_.uses(path)) {
    if (link_seen_[u.link]) continue;
    link_seen_[u.link] = 1;
    links_.push_back(u.link);
  }
}

// Gathers into links_ and solved_ all that changed paths reach through rates of at least `floor`.
void MaxMinRates::collect(double floor) {
  links_.clear();
  solved_.clear();
  for (int path : changed_paths_) {
    see(path);
    state_[path].changed = false;
    if (state_[path].count == 0) state_[path].rate = 0;
  }
  for (size_t i = 0; i < links_.size(); ++i) {
    const int link = links_[i];
    room_[link] = capacity_[link];
    weight_[link] = 0;
    open_[link] = 0;
    for (const Member& m : members_[link]) {
      PathState& state = state_[m.path];
      const double load = state.count * m.load;
      if (state.solved_count > 0 && state.rate < floor) {
        room_[link] -= load * state.rate;
        continue;
      }
      weight_[link] += load;
      ++open_[link];
      if (state.open) continue;
      state.open = true;
      solved_.push_back(m.path);
      see(m.path);
    }
  }
}

void MaxMinRates::fix(int path, double level) {
  PathState& state = state_[path];
  state.rate = level;
  state.open = false;
  for (const LinkUse& u : paths_.uses(path)) {
    const double load = state.count * u.load;
    room_[u.link] -= load * level;
    weight_[u.link] -= load;
    --open_[u.link];
  }
}

// Progressive filling. A link's level only rises while others are fixed below it, so a heap with
// stale entries that are pushed back when popped finds the lowest.
void MaxMinRates::fill() {
  heap_.clear();
  for (int link : links_) {
    if (open_[link] > 0) heap_.push_back({room_[link] / weight_[link], link});
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    const Level top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    if (open_[top.link] == 0) continue;
    const double level = room_[top.link] / weight_[top.link];
    if (level > top.level) {
      heap_.push_back({level, top.link});
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      continue;
    }
    for (const Member& m : members_[top.link]) {
      if (state_[m.path].open) fix(m.path, top.level);
    }
  }
}

const std::vector<int>& MaxMinRates::solve() {
  if (changed_paths_.empty()) {
    solved_.clear();
    return solved_;
  }
  collect(lowestChangedLevel());
  fill();
  for (int path : changed_paths_) state_[path].solved_count = state_[path].count;
  for (int link : links_) link_seen_[link] = 0;
  changed_paths_.clear();
  return solved_;
}

}  // namespace topoopt
