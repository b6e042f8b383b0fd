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
  for (int path : used_paths_) state_[path] = PathState();
  used_paths_.clear();
  state_.resize(paths_.size());
  slot_.resize(paths_.useCount());
  members_.resize(links);
  for (auto& members : members_) members.clear();
  link_.assign(links, LinkState());
  changed_paths_.clear();
  changed_links_.clear();
}

void MaxMinRates::changeCapacity(int link) { changed_links_.push_back(link); }

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
  if (!state.used) {
    state.used = true;
    used_paths_.push_back(path);
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

// Whether a changed path is done with: as many flows as before, or alone on its links.
bool MaxMinRates::settle(int path) {
  PathState& state = state_[path];
  if (state.count == state.solved_count) return true;
  const size_t alone = state.count > 0 ? 1 : 0;
  double rate = std::numeric_limits<double>::infinity();
  for (const LinkUse& u : paths_.uses(path)) {
    if (members_[u.link].size() != alone) return false;
    rate = std::min(rate, capacity_[u.link] / (u.load * state.count));
  }
  state.rate = alone ? rate : 0;
  state.solved_count = state.count;
  solved_.push_back(path);
  return true;
}

// Below the returned level the old filling and the new one are the same. A path that lost flows
// was stopped at its old rate, so none of its links was full before; the links of a path that
// gained flows cannot be full before capacity / (sum of all loads). Of a link with another capacity
// both hold.
double MaxMinRates::lowestChangedLevel() {
  double lowest = std::numeric_limits<double>::infinity();
  links_.clear();
  for (int path : changed_paths_) {
    const PathState& state = state_[path];
    if (state.solved_count > 0) lowest = std::min(lowest, state.rate);
    if (state.count <= state.solved_count) continue;
    for (const LinkUse& u : paths_.uses(path)) {
      if (link_[u.link].seen) continue;  // flows that start together cross the same links
      seeLink(u.link);
      double load = 0;
      for (const Member& m : members_[u.link]) load += state_[m.path].count * m.load;
      lowest = std::min(lowest, capacity_[u.link] / load);
    }
  }
  for (int link : changed_links_) {
    double load = 0;
    for (const Member& m : members_[link]) {
      load += state_[m.path].count * m.load;
      if (state_[m.path].solved_count > 0) lowest = std::min(lowest, state_[m.path].rate);
    }
    if (load > 0) lowest = std::min(lowest, capacity_[link] / load);
  }
  return lowest * (1 - kMargin);
}

void MaxMinRates::seeLink(int link) {
  if (link_[link].seen) return;
  link_[link].seen = true;
  links_.push_back(link);
}

void MaxMinRates::see(int path) {
  for (const LinkUse& u : paths_.uses(path)) seeLink(u.link);
}

// Gathers into links_ and solved_ all that changed paths reach through rates of at least `floor`.
// links_ has some of the links of changed paths already.
void MaxMinRates::collect(double floor) {
  for (int path : changed_paths_) {
    see(path);
    if (state_[path].count == 0) state_[path].rate = 0;
  }
  for (int link : changed_links_) seeLink(link);
  for (size_t i = 0; i < links_.size(); ++i) {
    double room = capacity_[links_[i]];
    double weight = 0;
    int open = 0;
    for (const Member& m : members_[links_[i]]) {
      PathState& state = state_[m.path];
      const double load = state.count * m.load;
      if (state.solved_count > 0 && state.rate < floor) {
        room -= load * state.rate;
        continue;
      }
      weight += load;
      ++open;
      if (state.open) continue;
      state.open = true;
      solved_.push_back(m.path);
      see(m.path);
    }
    LinkState& link = link_[links_[i]];
    link.room = room;
    link.weight = weight;
    link.open = open;
  }
}

void MaxMinRates::fix(int path, double level) {
  PathState& state = state_[path];
  state.rate = level;
  state.open = false;
  for (const LinkUse& u : paths_.uses(path)) {
    LinkState& link = link_[u.link];
    const double load = state.count * u.load;
    link.room -= load * level;
    link.weight -= load;
    --link.open;
  }
}

// Puts `item` at the top of the heap in place of what is there.
void MaxMinRates::replaceTop(Level item) {
  const size_t size = heap_.size();
  size_t at = 0;
  for (size_t child = 1; child < size; child = 2 * at + 1) {
    if (child + 1 < size && heap_[child] > heap_[child + 1]) ++child;
    if (!(item > heap_[child])) break;
    heap_[at] = heap_[child];
    at = child;
  }
  heap_[at] = item;
}

// Progressive filling. A link's level only rises while others are fixed below it, so a heap with
// stale entries that are put back when they come to the top finds the lowest. Links that are not
// full when the last rate is fixed are never looked at.
void MaxMinRates::fill() {
  heap_.clear();
  for (int link : links_) {
    if (link_[link].open > 0) heap_.push_back({link_[link].room / link_[link].weight, link});
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  size_t open = solved_.size() - solved_alone_;
  while (open > 0) {
    const Level top = heap_.front();
    const LinkState& link = link_[top.link];
    if (link.open > 0) {
      const double level = std::max(0.0, link.room) / link.weight;
      if (level > top.level) {
        replaceTop({level, top.link});
        continue;
      }
      open -= link.open;
      for (const Member& m : members_[top.link]) {
        if (state_[m.path].open) fix(m.path, std::max(0.0, top.level));
      }
    }
    const Level last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) replaceTop(last);
  }
}

const std::vector<int>& MaxMinRates::solve() {
  solved_.clear();
  if (changed_paths_.empty() && changed_links_.empty()) return solved_;
  for (int path : changed_paths_) state_[path].changed = false;
  if (changed_links_.empty()) std::erase_if(changed_paths_, [this](int p) { return settle(p); });
  if (!changed_paths_.empty() || !changed_links_.empty()) {
    solved_alone_ = solved_.size();
    collect(lowestChangedLevel());
    fill();
    for (int path : changed_paths_) state_[path].solved_count = state_[path].count;
    for (int link : links_) link_[link].seen = false;
  }
  changed_paths_.clear();
  changed_links_.clear();
  return solved_;
}

}  // namespace topoopt
