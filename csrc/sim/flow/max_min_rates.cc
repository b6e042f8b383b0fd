// The start of a solve: updates path counts and capacities. Filling is in max_min_filling.cc.

#include "sim/flow/max_min_rates.h"

#include <algorithm>

namespace topoopt {

MaxMinRates::MaxMinRates(const std::vector<double>& capacity, const PathTable& paths)
    : capacity_(capacity), paths_(&paths) {
  reset(paths);
}

void MaxMinRates::reset(const PathTable& paths) {
  paths_ = &paths;
  const size_t links = capacity_.size();
  for (int path : used_paths_) path_[path] = PathState();
  used_paths_.clear();
  path_.resize(paths_->size());
  slot_.resize(paths_->useCount());
  members_.resize(links);
  for (auto& members : members_) members.clear();
  known_capacity_.assign(capacity_.begin(), capacity_.end());
  link_.assign(links, LinkState());
  for (size_t link = 0; link < links; ++link) {
    link_[link].room = capacity_[link];
    link_[link].slack = kRounding * capacity_[link];
  }
  closed_level_.assign(links, 0.0);
  touched_.assign(links, 0);
  key_.assign(links, 0.0);
  fresh_.assign(links, 0.0);
  summed_at_.assign(links, 0);
  solves_ = 0;
  pairs_.reset(links);
  changed_paths_.clear();
  changed_links_.clear();
  solved_links_.clear();
  moved_paths_.clear();
}

void MaxMinRates::changeCapacity(int link) { changed_links_.push_back(link); }

void MaxMinRates::change(int path, int delta) {
  PathState& state = path_[path];
  state.count += delta;
  if (!state.changed) {
    state.changed = true;
    changed_paths_.push_back(path);
  }
  if (!state.used) {
    state.used = true;
    used_paths_.push_back(path);
  }
}

// Returns whether it shares no link.
bool MaxMinRates::attach(int path) {
  int use = paths_->firstUse(path);
  bool alone = true;
  for (const LinkUse& u : paths_->uses(path)) {
    auto& members = members_[u.link];
    alone = alone && members.empty();
    slot_[use] = static_cast<int>(members.size());
    members.push_back({path, use++});
  }
  return alone;
}

void MaxMinRates::detach(int path) {
  int use = paths_->firstUse(path);
  for (const LinkUse& u : paths_->uses(path)) {
    auto& members = members_[u.link];
    const Member last = members.back();
    members[slot_[use]] = last;
    slot_[last.use] = slot_[use];
    members.pop_back();
    ++use;
  }
}

void MaxMinRates::list(int link) {
  if (link_[link].listed) return;
  link_[link].listed = true;
  solved_links_.push_back(link);
}

// Applies a changed path's count while all groups are closed. An idle path alone on its links stays
// until another path needs them, because its next flow often comes first.
void MaxMinRates::apply(int path) {
  PathState& state = path_[path];
  state.changed = false;
  if (state.count == state.held_count) return;
  if (state.count == 0 && isAlone(path)) return;
  setCount(path, state.count);
}

bool MaxMinRates::isAlone(int path) const {
  return std::ranges::all_of(paths_->uses(path),
                             [this](const LinkUse& use) { return members_[use.link].size() == 1; });
}

void MaxMinRates::setCount(int path, int count) {
  PathState& state = path_[path];
  const int before = state.held_count;
  state.held_count = count;
  if (before == 0) {
    makeRoom(path);
    if (attach(path)) {
      holdAlone(path);
      return;
    }
  }
  const int holder = state.bottleneck;
  for (const LinkUse& u : paths_->uses(path)) {
    LinkState& link = link_[u.link];
    const double load = (count - before) * u.load;
    touch(u.link);
    if (holder < 0) {
      fresh_[u.link] += load;
      link.load = link.own + fresh_[u.link];
      ++link.fresh_paths;
    } else if (u.link == holder) {
      link.own += load;
      if (count == 0 && --link.group == 0) link.own = 0;
      link.load = link.own + fresh_[u.link];
      link.used = link.group > 0 ? link.level * link.own : kNone;
    } else {
      link.room -= load * link_[holder].level;
      if (count == 0) {
        pairs_.remove(holder, u.link, -load);
      } else {
        pairs_.change(holder, u.link, load);
      }
    }
  }
  if (count > 0) return;
  detach(path);
  if (link_[holder].group == 0) {
    link_[holder].level = kNever;
    list(holder);
  }
  state.bottleneck = -1;
  moved(state, path);
}

void MaxMinRates::moved(PathState& state, int path) {
  if (state.moved) return;
  state.moved = true;
  moved_paths_.push_back(path);
}

// Removes idle paths from the links of `path`.
void MaxMinRates::makeRoom(int path) {
  for (const LinkUse& u : paths_->uses(path)) {
    if (members_[u.link].size() != 1) continue;
    const int other = members_[u.link].front().path;
    if (path_[other].count == 0) setCount(other, 0);
  }
}

// The bottleneck of a path alone on its links is the narrowest one.
void MaxMinRates::holdAlone(int path) {
  PathState& state = path_[path];
  double level = kNever;
  for (const LinkUse& u : paths_->uses(path)) {
    const double full = known_capacity_[u.link] / (state.held_count * u.load);
    if (full >= level) continue;
    level = full;
    state.bottleneck = u.link;
  }
  for (const LinkUse& u : paths_->uses(path)) {
    LinkState& link = link_[u.link];
    const double load = state.held_count * u.load;
    if (u.link == state.bottleneck) {
      link.own = load;
      link.load = load;
      link.group = 1;
      link.level = level;
      link.used = level * load;
      closed_level_[u.link] = level;
    } else {
      pairs_.add(state.bottleneck, u.link, load);
      link.room -= load * level;
    }
  }
  list(state.bottleneck);
  moved(state, path);
}

void MaxMinRates::solve() {
  ++solves_;
  for (int link : solved_links_) link_[link].listed = false;
  for (int path : moved_paths_) path_[path].moved = false;
  solved_links_.clear();
  moved_paths_.clear();
  if (changed_paths_.empty() && changed_links_.empty()) return;
  touched_links_.clear();
  for (int path : changed_paths_) apply(path);
  changed_paths_.clear();
  for (int link : changed_links_) {
    link_[link].room += capacity_[link] - known_capacity_[link];
    known_capacity_[link] = capacity_[link];
    link_[link].slack = kRounding * capacity_[link];
    touch(link);
  }
  changed_links_.clear();
  for (int link : touched_links_) {
    touched_[link] = 0;
    review(link);
  }
  fill();
}

}  // namespace topoopt
