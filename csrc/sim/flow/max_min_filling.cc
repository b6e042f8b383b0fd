// Progressive filling of changes: links are opened, evaluated and closed in ascending order of
// levels.

#include <algorithm>
#include <cmath>
#include <functional>

#include "sim/flow/max_min_rates.h"

namespace topoopt {

namespace {

// Relative difference of equal levels: no path moves between their links.
constexpr double kTie = 1e-12;
// A recomputed level this close is kept, so that rounding does not accumulate.
constexpr double kSame = 1e-14;
constexpr unsigned kSolvesPerSum = 16;
// Turns per solve before the rounding tolerance grows tenfold, and the limit of growths.
constexpr size_t kTurnsPerLink = 50;
constexpr int kMostWidenings = 3;

}  // namespace

// Returns whether the link is filled by its group, if any, and not overfull.
bool MaxMinRates::settled(const LinkState& link) const {
  return link.group > 0 ? std::abs(link.room - link.used) <= link.slack : link.room >= -link.slack;
}

// Opens or queues a link with changed traffic. While open groups cross it, this waits for their
// closing.
void MaxMinRates::review(int link) {
  LinkState& state = link_[link];
  if (state.is_open) return;
  if (state.fresh_paths > 0) {
    requeue(link);
    return;
  }
  if (state.open_pairs > 0 || settled(state)) return;
  if (state.group > 0) {
    open(link);
  } else {
    requeue(link);
  }
}

void MaxMinRates::open(int link) {
  LinkState& state = link_[link];
  state.is_open = true;
  state.used = kNone;
  closed_level_[link] = -1;
  const double level = state.level;
  LinkState* const links = link_.data();
  for (const LinkPairs::Cell& cell : pairs_.row(link)) {
    LinkState& crossed = links[cell.link];
    crossed.room += cell.weight * level;
    crossed.load += cell.weight;
    ++crossed.open_pairs;
  }
  list(link);
  requeue(link);
}

void MaxMinRates::queue(int link, double key) {
  link_[link].queued = true;
  key_[link] = key;
  heap_.push_back({key, link});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

// Queues a link at its lowest possible level, given the closed groups.
void MaxMinRates::requeue(int link) {
  const LinkState& state = link_[link];
  const double key = state.load > 0 ? std::max(0.0, state.room) / state.load : 0.0;
  if (!state.queued || key < key_[link]) queue(link, key);
}

bool MaxMinRates::firstIsAbove(double level) {
  while (!heap_.empty()) {
    const Level top = heap_.front();
    if (link_[top.link].queued && key_[top.link] == top.level) return top.level >= level;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
  }
  return true;
}

// Returns the level at which the link is full if all open groups rise. Sums up its room again, and
// opens groups closed at a higher level, because this link will be their bottleneck.
double MaxMinRates::evaluate(int link) {
  LinkState& state = link_[link];
  summed_at_[link] = solves_;
  while (true) {
    double room = known_capacity_[link], open_load = 0, highest = 0;
    int open_pairs = 0;
    for (const LinkPairs::Cell& cell : pairs_.column(link)) {
      const double level = closed_level_[cell.link];
      const int is_open = level < 0;
      room -= cell.weight * std::max(0.0, level);
      open_load += cell.weight * is_open;
      open_pairs += is_open;
      highest = std::max(highest, level);
    }
    state.room = room;
    state.load = state.own + fresh_[link] + open_load;
    state.open_pairs = open_pairs;
    double level = room < -state.slack ? 0.0 : kNever;
    if (state.load > 0) level = std::max(0.0, room) / state.load;
    if (highest <= level * (1 + kTie)) return level;
    for (const LinkPairs::Cell& cell : pairs_.column(link)) {
      if (closed_level_[cell.link] > level * (1 + kTie)) open(cell.link);
    }
  }
}

// The link with the lowest key.
void MaxMinRates::take(Level top) {
  LinkState& state = link_[top.link];
  state.queued = false;
  if (!state.is_open && state.fresh_paths == 0 && state.open_pairs == 0) {
    if (settled(state)) return;
    if (state.group > 0) {
      open(top.link);
      return;
    }
  }
  double level = kNever;
  if (state.load > 0) {
    level = std::max(0.0, state.room) / state.load;
    if (level > top.level && !firstIsAbove(level)) {
      queue(top.link, level);
      return;
    }
  }
  if (needsEvaluation(top.link, level)) {
    level = evaluate(top.link);
    if (level == kNever) return;
  }
  if (firstIsAbove(level)) {
    close(top.link, level);
  } else {
    queue(top.link, level);
  }
}

// Returns whether a group may be closed above `level`, or many updates of the room of `link` may
// have accumulated rounding. No group crossing a link with a group was above its level.
bool MaxMinRates::needsEvaluation(int link, double level) const {
  const LinkState& state = link_[link];
  return level == kNever || level < state.level || level < highest_closed_ ||
         solves_ - summed_at_[link] > kSolvesPerSum;
}

// Moves all fresh paths on `link` to its group, and paths of open groups that may rise above
// `level`. Other paths stay; if their group rises later, `link` becomes overfull and takes them. So
// paths with equal bottlenecks do not oscillate.
void MaxMinRates::gather(int link, double level) {
  const double tied = level * (1 + kTie);
  const bool overfull = link_[link].overfull;
  const auto rises = [&](int holder) {
    const LinkState& state = link_[holder];
    return state.is_open && (overfull || state.room > tied * state.load);
  };
  const auto cellRises = [&](const LinkPairs::Cell& cell) { return rises(cell.link); };
  if (link_[link].fresh_paths == 0 && std::ranges::none_of(pairs_.column(link), cellRises)) return;
  for (const Member& member : members_[link]) {
    const int holder = path_[member.path].bottleneck;
    if (holder != link && (holder < 0 || rises(holder))) move(member.path, link);
  }
}

void MaxMinRates::move(int path, int to) {
  PathState& state = path_[path];
  const int from = state.bottleneck;
  for (const LinkUse& u : paths_->uses(path)) {
    LinkState& link = link_[u.link];
    const double load = state.held_count * u.load;
    if (from < 0) {
      fresh_[u.link] = --link.fresh_paths == 0 ? 0.0 : fresh_[u.link] - load;
    } else if (u.link == from) {
      link.own = --link.group == 0 ? 0.0 : link.own - load;
    } else if (pairs_.remove(from, u.link, load)) {
      --link.open_pairs;
    }
    if (u.link == to) {
      link.own += load;
      ++link.group;
    } else if (pairs_.add(to, u.link, load)) {
      ++link.open_pairs;
    }
  }
  if (from >= 0 && link_[from].group == 0) {
    link_[from].is_open = false;
    link_[from].level = kNever;
  }
  state.bottleneck = to;
  moved(state, path);
}

// Closes the group of `link` at `level`, unless another link would overfill and so fill first; that
// one is then handled first.
void MaxMinRates::close(int link, double level) {
  LinkState& state = link_[link];
  if (!state.is_open) {
    open(link);
    state.queued = false;
  }
  if (state.open_pairs > 0 || state.fresh_paths > 0) gather(link, level);
  state.overfull = false;
  if (state.group == 0) {
    state.is_open = false;
    return;
  }
  if (std::abs(level - state.level) <= kSame * level) level = state.level;
  const std::vector<LinkPairs::Cell>& row = pairs_.row(link);
  if (rooms_.size() < row.size()) {
    rooms_.resize(row.size());
    unsettled_.resize(row.size());
  }
  overfull_.clear();
  const double least = level * (1 - kTie);
  LinkState* const links = link_.data();
  double* saved = rooms_.data();
  int* unsettled = unsettled_.data();
  for (const LinkPairs::Cell& cell : row) {
    LinkState& crossed = links[cell.link];
    const double room = crossed.room - cell.weight * level;
    const double load = crossed.load - cell.weight;
    const double slack = crossed.slack;
    const int open_pairs = crossed.open_pairs - 1;
    *saved++ = crossed.room;
    crossed.room = room;
    crossed.load = load;
    crossed.open_pairs = open_pairs;
    if (room - least * load < -slack) overfull_.push_back(cell.link);
    *unsettled = cell.link;  // branchless, because mispredictions are frequent
    unsettled += (open_pairs == 0) & (std::abs(room - crossed.used) > slack);
  }
  if (overfull_.empty()) {
    state.is_open = false;
    state.level = level;
    state.used = level * state.own;
    closed_level_[link] = level;
    highest_closed_ = std::max(highest_closed_, level);
    for (const int* other = unsettled_.data(); other != unsettled; ++other) open(*other);
    return;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    LinkState& crossed = link_[row[i].link];
    crossed.room = rooms_[i];
    crossed.load += row[i].weight;
    ++crossed.open_pairs;
  }
  queue(link, level);
  for (int other : overfull_) {
    link_[other].overfull = true;
    queue(other, evaluate(other));
  }
}

// Two links whose levels differ by about kTie can open each other forever, because the error of one
// level exceeds rounding on the other. So the rounding tolerance, and with it the error of levels,
// grows with the turns of this solve. If that fails, all rates are recomputed.
void MaxMinRates::fill() {
  highest_closed_ = 0;
  const size_t turns_before = kTurnsPerLink * (link_.size() + 1);
  size_t turns = 0;
  int widenings = 0;
  while (!heap_.empty()) {
    if (++turns > turns_before) {
      if (++widenings > kMostWidenings) return fillAnew();
      turns = 0;
      for (LinkState& link : link_) link.slack *= 10;
    }
    const Level top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    if (link_[top.link].queued && key_[top.link] == top.level) take(top);
  }
  if (widenings == 0) return;
  for (size_t link = 0; link < link_.size(); ++link) {
    link_[link].slack = kRounding * known_capacity_[link];
  }
}

}  // namespace topoopt
