// Computes all rates by progressive filling: slower than an update, but it always terminates.

#include <algorithm>
#include <functional>

#include "sim/flow/max_min_rates.h"

namespace topoopt {

void MaxMinRates::solveAnew() {
  solve();
  fillAnew();
}

// Clears all levels and groups: every path is fresh.
void MaxMinRates::forgetGroups() {
  heap_.clear();
  pairs_.reset(link_.size());
  for (size_t link = 0; link < link_.size(); ++link) {
    if (link_[link].group > 0) list(static_cast<int>(link));
    const bool listed = link_[link].listed;
    link_[link] = LinkState();
    link_[link].listed = listed;
    link_[link].room = known_capacity_[link];
    link_[link].slack = kRounding * known_capacity_[link];
    closed_level_[link] = 0;
    fresh_[link] = 0;
    summed_at_[link] = solves_;
  }
  for (int path : used_paths_) {
    PathState& state = path_[path];
    if (state.held_count == 0) continue;
    state.bottleneck = -1;
    for (const LinkUse& u : paths_->uses(path)) {
      link_[u.link].load += state.held_count * u.load;
      ++link_[u.link].fresh_paths;
    }
  }
}

// Moves all fresh paths on `link` to its group, closed at `level`.
void MaxMinRates::holdFresh(int link, double level) {
  for (const Member& member : members_[link]) {
    PathState& state = path_[member.path];
    if (state.bottleneck >= 0) continue;
    state.bottleneck = link;
    for (const LinkUse& u : paths_->uses(member.path)) {
      LinkState& crossed = link_[u.link];
      const double load = state.held_count * u.load;
      crossed.load = --crossed.fresh_paths == 0 ? 0.0 : crossed.load - load;
      if (u.link == link) {
        crossed.own += load;
        ++crossed.group;
      } else {
        pairs_.add(link, u.link, load);
        crossed.room -= load * level;
      }
    }
  }
  LinkState& state = link_[link];
  state.level = level;
  state.used = level * state.own;
  closed_level_[link] = level;
  list(link);
}

// The link that fills first becomes the bottleneck of its paths. That only raises other links'
// levels, so a link whose level has risen is queued again.
void MaxMinRates::fillAnew() {
  std::vector<int> before;
  before.reserve(used_paths_.size());
  for (int path : used_paths_) before.push_back(path_[path].bottleneck);
  forgetGroups();
  for (size_t link = 0; link < link_.size(); ++link) {
    if (link_[link].fresh_paths > 0) requeue(static_cast<int>(link));
  }
  double reached = 0;
  while (!heap_.empty()) {
    const int link = heap_.front().link;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    LinkState& state = link_[link];
    state.queued = false;
    if (state.fresh_paths == 0) continue;
    const double level = std::max(0.0, state.room) / state.load;
    if (!heap_.empty() && level > heap_.front().level) {
      queue(link, level);
      continue;
    }
    reached = std::max(reached, level);
    holdFresh(link, reached);
  }
  for (LinkState& state : link_) state.load = state.own;
  for (size_t i = 0; i < used_paths_.size(); ++i) {
    const int path = used_paths_[i];
    if (path_[path].bottleneck != before[i]) moved(path_[path], path);
  }
}

}  // namespace topoopt
