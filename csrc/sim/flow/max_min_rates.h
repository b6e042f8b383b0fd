// Max-min fair rates of flows on shared links, kept up to date as flows come and go.

#pragma once

#include <limits>
#include <vector>

#include "sim/core/path_table.h"
#include "sim/flow/link_pairs.h"

namespace topoopt {

// Path p has n_p flows of equal rate x_p; each byte of them puts a_pl bytes on link l, which
// carries c_l bytes per second (path_table.h, LinkUse::load). The rates are feasible if for every
// link
//
//     sum over p of  n_p a_pl x_p  <=  c_l
//
// and max-min fair if no x_p can grow unless some x_q <= x_p shrinks. That holds exactly if every
// path with flows has a bottleneck: a link on it that is full, and on which no path has a higher
// rate. The paths with bottleneck l are its group G_l, and their common rate is its level
//
//     level_l = (c_l - sum over p not in G_l of n_p a_pl x_p) / (sum over p in G_l of n_p a_pl)
//
// Example: c_0 = 10, c_1 = 6, all loads 1; path A crosses link 0, B both, C link 1. Link 1 fills
// first, G_1 = {B, C} at level 6 / 2 = 3; then G_0 = {A} at (10 - 3) / 1 = 7. When C ends, B is
// held back by link 0: G_0 = {A, B} at level 5, and link 1 has no group.
//
// The unknowns are the levels of links, not the rates of flows: one weight for each pair of a group
// and a link that it crosses gives what a group uses there. A change is followed from link to link
// in ascending order of levels, only where levels change; paths are visited one by one only when
// their bottleneck becomes another link. When a flow ends, hundreds of rates change, but few
// bottlenecks.
class MaxMinRates {
 public:
  // `capacity[l]` is in bytes per second. Both arguments must outlive this object; after a
  // change of capacity comes changeCapacity().
  MaxMinRates(const std::vector<double>& capacity, const PathTable& paths);

  // Forgets all flows; these are the paths from now on, which must outlive this object.
  void reset(const PathTable& paths);

  // Adds (+1) or removes (-1) flows on `path`; takes effect at the next solve().
  void change(int path, int delta);

  // `capacity[link]` has changed; takes effect at the next solve(). 0 stops its paths.
  void changeCapacity(int link);

  // Brings rates up to date.
  void solve();

  // The same from nothing, which takes longer.
  void solveAnew();

  // Of the last solve: links whose level may be another or whose group has become empty, and paths
  // whose bottleneck is another. Both without repetitions, valid until the next call.
  const std::vector<int>& solvedLinks() const { return solved_links_; }
  const std::vector<int>& movedPaths() const { return moved_paths_; }

  // The link that holds `path` back; -1 without flows.
  int bottleneck(int path) const { return path_[path].bottleneck; }
  // Paths that `link` holds back, and the bytes per second of each of their flows if there are any.
  int groupSize(int link) const { return link_[link].group; }
  double level(int link) const { return link_[link].level; }
  // Bytes per second of each flow on `path`; 0 without flows.
  double rate(int path) const {
    const PathState& state = path_[path];
    return state.count == 0 || state.bottleneck < 0 ? 0.0 : link_[state.bottleneck].level;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr double kRounding = 1e-14;  // part of a capacity that may be rounding of sums
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  struct Member {
    int path;
    int use;  // index of this link among the uses of all paths
  };
  struct PathState {
    int bottleneck = -1;
    int count = 0;         // flows now
    int held_count = 0;    // flows that links reckon with
    bool changed = false;  // in changed_paths_
    bool moved = false;    // in moved_paths_
    bool used = false;     // in used_paths_
  };
  // During a solve a group is closed (its level is known) or open (it will be at least as high as
  // all levels that were found so far). Fresh paths have no bottleneck yet. Loads are sums of
  // count x load over paths.
  struct alignas(64) LinkState {
    double room = 0;        // capacity without what closed groups of other links use
    double load = 0;        // of all that is not closed: own, fresh, and open groups of other links
    double own = 0;         // load of its own group
    double level = kNever;  // of its group; while that is open, what it was
    double used = kNone;    // by its group if that is closed
    double slack = 0;       // bytes per second that may be rounding
    int group = 0;          // paths
    int open_pairs = 0;     // open groups that cross it
    int fresh_paths = 0;    // that cross it
    bool is_open = false;
    bool queued = false;    // with key_[link]
    bool listed = false;    // in solved_links_
    bool overfull = false;  // when another group was to be closed
  };
  static_assert(sizeof(LinkState) == 64, "one cache line, of which solves touch hundreds");
  struct Level {
    double level;
    int link;
    bool operator>(const Level& other) const {
      return level != other.level ? level > other.level : link > other.link;
    }
  };

  bool attach(int path);
  void detach(int path);
  void apply(int path);
  bool isAlone(int path) const;
  void setCount(int path, int count);
  void makeRoom(int path);
  void moved(PathState& state, int path);
  void holdAlone(int path);
  void review(int link);
  void fill();
  void fillAnew();
  void forgetGroups();
  void holdFresh(int link, double level);
  void open(int link);
  void queue(int link, double key);
  void requeue(int link);
  void take(Level top);
  bool firstIsAbove(double level);
  bool needsEvaluation(int link, double level) const;
  double evaluate(int link);
  void close(int link, double level);
  void gather(int link, double level);
  void move(int path, int to);
  bool settled(const LinkState& link) const;
  void list(int link);
  void touch(int link) {
    if (touched_[link]) return;
    touched_[link] = 1;
    touched_links_.push_back(link);
  }

  const std::vector<double>& capacity_;
  const PathTable* paths_;

  std::vector<PathState> path_;
  std::vector<int> slot_;                     // per use: position in members_[link]
  std::vector<std::vector<Member>> members_;  // per link: paths with flows
  std::vector<LinkState> link_;
  std::vector<double> known_capacity_;  // per link, in `room`
  std::vector<double> closed_level_;    // per link: level of its closed group, -1: open
  std::vector<double> fresh_;           // per link: load of fresh paths
  std::vector<double> key_;             // per queued link: where it is in heap_
  std::vector<char> touched_;           // per link: in touched_links_
  std::vector<unsigned> summed_at_;     // per link: the solve that summed up its room last
  unsigned solves_ = 0;
  double highest_closed_ = 0;  // level in this solve
  LinkPairs pairs_;
  std::vector<int> used_paths_, changed_paths_, changed_links_, touched_links_;
  std::vector<int> solved_links_, moved_paths_, overfull_;
  std::vector<double> rooms_;   // in close()
  std::vector<int> unsettled_;  // in close()
  std::vector<Level> heap_;     // with entries that are out of date
};

}  // namespace topoopt
