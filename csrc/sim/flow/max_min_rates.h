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
// The unknowns are the levels of links, not the rates of flows: one weight per pair of a group and
// a crossed link gives the group's use there. A change propagates from link to link in ascending
// order of levels, only where levels change. Single paths are visited only when their bottleneck
// changes: the end of a flow changes hundreds of rates, but few bottlenecks.
class MaxMinRates {
 public:
  // `capacity[l]` is in bytes per second. Both arguments must outlive this object; call
  // changeCapacity() after changing a capacity.
  MaxMinRates(const std::vector<double>& capacity, const PathTable& paths);

  // Removes all flows and sets the paths, which must outlive this object.
  void reset(const PathTable& paths);

  // Adds (+1) or removes (-1) flows on `path` at the next solve().
  void change(int path, int delta);

  // Applies a changed `capacity[link]` at the next solve(). 0 stops its paths.
  void changeCapacity(int link);

  // Updates the rates.
  void solve();

  // Recomputes all rates, which takes longer.
  void solveAnew();

  // Result of the last solve: links with a possibly changed level or an emptied group, and paths
  // with a new bottleneck. Distinct, valid until the next call.
  const std::vector<int>& solvedLinks() const { return solved_links_; }
  const std::vector<int>& movedPaths() const { return moved_paths_; }

  // The bottleneck of `path`; -1 without flows.
  int bottleneck(int path) const { return path_[path].bottleneck; }
  // Number of paths with bottleneck `link`, and the bytes per second of each of their flows.
  int groupSize(int link) const { return link_[link].group; }
  double level(int link) const { return link_[link].level; }
  // Bytes per second of each flow on `path`; 0 without flows.
  double rate(int path) const {
    const PathState& state = path_[path];
    return state.count == 0 || state.bottleneck < 0 ? 0.0 : link_[state.bottleneck].level;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr double kRounding = 1e-14;  // fraction of a capacity attributed to rounding
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  struct Member {
    int path;
    int use;  // index of this link among the uses of all paths
  };
  struct PathState {
    int bottleneck = -1;
    int count = 0;         // current flows
    int held_count = 0;    // flows counted by the links
    bool changed = false;  // in changed_paths_
    bool moved = false;    // in moved_paths_
    bool used = false;     // in used_paths_
  };
  // During a solve a group is closed (its level is known) or open (at least at the highest level
  // found so far). Fresh paths have no bottleneck. Loads are sums of count x load over paths.
  struct alignas(64) LinkState {
    double room = 0;        // capacity minus use of closed groups of other links
    double load = 0;        // of unclosed paths: own, fresh, and open groups of other links
    double own = 0;         // load of its own group
    double level = kNever;  // of its group; if open, its previous one
    double used = kNone;    // by its closed group
    double slack = 0;       // tolerated rounding in bytes per second
    int group = 0;          // paths
    int open_pairs = 0;     // open groups crossing it
    int fresh_paths = 0;    // crossing it
    bool is_open = false;
    bool queued = false;    // with key_[link]
    bool listed = false;    // in solved_links_
    bool overfull = false;  // when another group was about to close
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
  std::vector<double> key_;             // per queued link: its key in heap_
  std::vector<char> touched_;           // per link: in touched_links_
  std::vector<unsigned> summed_at_;     // per link: last solve that summed up its room
  unsigned solves_ = 0;
  double highest_closed_ = 0;  // in this solve
  LinkPairs pairs_;
  std::vector<int> used_paths_, changed_paths_, changed_links_, touched_links_;
  std::vector<int> solved_links_, moved_paths_, overfull_;
  std::vector<double> rooms_;   // in close()
  std::vector<int> unsettled_;  // in close()
  std::vector<Level> heap_;     // with outdated entries
};

}  // namespace topoopt
