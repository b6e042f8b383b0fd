// Max-min fair rates of flows on shared links, kept up to date as flows come and go.

#pragma once

#include <vector>

#include "sim/path_table.h"

namespace topoopt {

// All flows on one path have the same rate, so the unknowns are paths with a count of flows, not
// flows. The allocation is the one of progressive filling: all rates rise together, a link that is
// full stops the paths that cross it. `solve()` visits only what a change can reach: a rate below
// the lowest level at which the old and the new filling can differ is kept as it is, and a path
// that shares no link with another is solved on its own.
class MaxMinRates {
 public:
  // `capacity[l]` is in bytes per second. Both arguments must outlive this object; paths may be
  // added to the table before reset(), and after a change of capacity comes changeCapacity().
  MaxMinRates(const std::vector<double>& capacity, const PathTable& paths);

  // Forgets all flows and picks up paths that were added to the table.
  void reset();

  // Adds (+1) or removes (-1) flows on `path`; takes effect at the next solve().
  void change(int path, int delta);

  // `capacity[link]` has changed; takes effect at the next solve(). 0 stops its paths.
  void changeCapacity(int link);

  // Brings rates up to date. Returns the paths whose rate was set anew (a superset of those whose
  // rate differs), valid until the next call.
  const std::vector<int>& solve();

  // Bytes per second of each flow on `path`; 0 without flows.
  double rate(int path) const { return state_[path].rate; }

 private:
  struct Member {
    int path;
    int use;  // index of this link among the uses of all paths
    double load;
  };
  struct PathState {
    double rate = 0;
    int count = 0;         // flows now
    int solved_count = 0;  // flows at the last solve
    bool open = false;     // in this solve, rate not fixed yet
    bool changed = false;  // in changed_paths_
    bool used = false;     // in used_paths_
  };
  struct LinkState {
    double room = 0;    // capacity left to open paths
    double weight = 0;  // sum of count x load of open paths
    int open = 0;       // open paths
    bool seen = false;  // in links_
  };
  struct Level {
    double level;
    int link;
    bool operator>(const Level& other) const {
      return level != other.level ? level > other.level : link > other.link;
    }
  };

  void attach(int path);
  void detach(int path);
  bool settle(int path);
  double lowestChangedLevel();
  void seeLink(int link);
  void see(int path);
  void collect(double floor);
  void replaceTop(Level item);
  void fill();
  void fix(int path, double level);

  const std::vector<double>& capacity_;
  const PathTable& paths_;

  std::vector<PathState> state_;              // per path
  std::vector<int> slot_;                     // per use: position in members_[link]
  std::vector<std::vector<Member>> members_;  // per link: paths with flows
  std::vector<LinkState> link_;               // per link
  std::vector<int> used_paths_, changed_paths_, changed_links_, links_, solved_;
  size_t solved_alone_ = 0;  // the first of solved_, which need no filling
  std::vector<Level> heap_;
};

}  // namespace topoopt
