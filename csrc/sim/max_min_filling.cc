// Progressive filling of what has changed: links are opened, evaluated and closed in ascending
// order of levels.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "sim/max_min_rates.h"

namespace topoopt {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Levels this close are equal: no path moves between their links.
constexpr double kTie = 1e-12;
// A level that is found again this close is kept, so that rounding does not spread.
constexpr double kSame = 1e-14;

}  // namespace

// Whether its group, if it has one, fills it, and it is not overfull.
bool MaxMinRates::settled(const LinkState& link) const {
  const double free = link.room - link.level * link.own;
  return link.group > 0 ? std::abs(free) <= link.slack : link.room >= -link.slack;
}

// Opens or queues a link if what crosses it has changed. While open groups cross it, this can wait:
// it is looked at again when they are closed.
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
  closed_level_[link] = -1;
  for (const LinkPairs::Cell& cell : pairs_.row(link)) {
    LinkState& crossed = link_[cell.link];
    crossed.room += cell.weight * state.level;
    crossed.open += cell.weight;
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

// Queues a link at the least level at which it can be full, given what is closed now.
void MaxMinRates::requeue(int link) {
  const LinkState& state = link_[link];
  const double load = state.load();
  const double key = load > 0 ? std::max(0.0, state.room) / load : 0.0;
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

// The level at which a link is full if all that is open rises: what it has room for is summed up
// anew, and groups that are closed at a higher level are opened, since it will hold their paths.
double MaxMinRates::evaluate(int link) {
  LinkState& state = link_[link];
  while (true) {
    double room = known_capacity_[link], open_load = 0, highest = 0;
    int open_pairs = 0;
    for (const LinkPairs::Cell& cell : pairs_.column(link)) {
      const double level = closed_level_[cell.link];
      const bool closed = level >= 0;
      room -= closed ? cell.weight * level : 0.0;
      open_load += closed ? 0.0 : cell.weight;
      open_pairs += closed ? 0 : 1;
      highest = std::max(highest, level);
    }
    state.room = room;
    state.open = open_load;
    state.open_pairs = open_pairs;
    const double load = state.load();
    double level = room < -state.slack ? 0.0 : kNever;
    if (load > 0) level = std::max(0.0, room) / load;
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
  const double load = state.load();
  if (load > 0) {
    const double level = std::max(0.0, state.room) / load;
    if (level > top.level && !firstIsAbove(level)) {
      queue(top.link, level);
      return;
    }
  }
  const double level = evaluate(top.link);
  if (level == kNever) return;
  if (firstIsAbove(level)) {
    close(top.link, level);
  } else {
    queue(top.link, level);
  }
}

// Makes all open and fresh paths on `link` its group.
void MaxMinRates::gather(int link) {
  for (const Member& member : members_[link]) {
    const int holder = path_[member.path].bottleneck;
    if (holder != link && (holder < 0 || link_[holder].is_open)) move(member.path, link);
  }
}

void MaxMinRates::move(int path, int to) {
  PathState& state = path_[path];
  const int from = state.bottleneck;
  for (const LinkUse& u : paths_.uses(path)) {
    LinkState& link = link_[u.link];
    const double load = state.held_count * u.load;
    if (from < 0) {
      link.fresh = --link.fresh_paths == 0 ? 0.0 : link.fresh - load;
    } else if (u.link == from) {
      link.own = --link.group == 0 ? 0.0 : link.own - load;
    } else {
      link.open -= load;
      if (pairs_.remove(from, u.link, load) && --link.open_pairs == 0) link.open = 0;
    }
    if (u.link == to) {
      link.own += load;
      ++link.group;
    } else {
      link.open += load;
      if (pairs_.add(to, u.link, load)) ++link.open_pairs;
    }
  }
  if (from >= 0 && link_[from].group == 0) link_[from].is_open = false;
  state.bottleneck = to;
  moved(state, path);
}

// Closes the group of `link` at `level`, unless that overfills another link that would then be full
// before; in this case it stays open, and the other one comes first.
void MaxMinRates::close(int link, double level) {
  LinkState& state = link_[link];
  if (!state.is_open) {
    open(link);
    state.queued = false;
  }
  if (state.open_pairs > 0 || state.fresh_paths > 0) gather(link);
  if (std::abs(level - state.level) <= kSame * level) level = state.level;
  overfull_.clear();
  unsettled_.clear();
  rooms_.clear();
  for (const LinkPairs::Cell& cell : pairs_.row(link)) {
    LinkState& crossed = link_[cell.link];
    rooms_.push_back(crossed.room);
    crossed.room -= cell.weight * level;
    crossed.open = --crossed.open_pairs == 0 ? 0.0 : crossed.open - cell.weight;
    const double rest = crossed.room - level * crossed.load() * (1 - kTie);
    if (rest < -crossed.slack) {
      overfull_.push_back(cell.link);
    } else if (!crossed.is_open && crossed.open_pairs == 0 && crossed.group > 0 &&
               !settled(crossed)) {
      unsettled_.push_back(cell.link);
    }
  }
  if (overfull_.empty()) {
    state.is_open = false;
    state.level = level;
    closed_level_[link] = level;
    for (int other : unsettled_) open(other);
    return;
  }
  size_t i = 0;
  for (const LinkPairs::Cell& cell : pairs_.row(link)) {
    LinkState& crossed = link_[cell.link];
    crossed.room = rooms_[i++];
    crossed.open += cell.weight;
    ++crossed.open_pairs;
  }
  queue(link, level);
  for (int other : overfull_) queue(other, evaluate(other));
}

void MaxMinRates::fill() {
  while (!heap_.empty()) {
    const Level top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    if (link_[top.link].queued && key_[top.link] == top.level) take(top);
  }
}

}  // namespace topoopt
