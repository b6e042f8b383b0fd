// Flows of units from all servers to one sink, kept feasible while capacities and supplies change.

#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/integer_links.h"

namespace topoopt {

// The units on every link, and those that start at every server. All arrive at the sink.
struct SinkFlow {
  std::vector<int64_t> link{};
  std::vector<int64_t> supply{};
};

// Changes flows over the same links by augmenting paths; holds the scratch memory for it.
class FlowUpdater {
 public:
  explicit FlowUpdater(const IntegerLinks& links);

  // Changes `flow` into one to `sink` within `capacity` from `supply`. Returns how many units find
  // no path; they are missing in `flow` behind saturated links until finish().
  int64_t update(SinkFlow& flow, int sink, std::span<const int64_t> capacity,
                 std::span<const int64_t> supply);

  // Continues the last update() with larger capacities.
  int64_t finish(SinkFlow& flow, std::span<const int64_t> capacity);

  // Whether `server` is on the sink's side of the slowest cut, after an update() that found one.
  bool onSinkSide(int server) const {
    return cut_by_excess_ ? from_excess_.seen[server] != stamp_
                          : to_deficit_.seen[server] == stamp_;
  }

 private:
  // Servers that a search has reached, from those it starts at.
  struct Side {
    std::vector<int> queue;
    size_t next = 0;
    std::vector<int> via;  // by server: the link to the server before it; -1 at a start
    std::vector<int> seen;
  };

  void add(int server, int64_t units);
  void start();
  void searchFromSink(const SinkFlow& flow, std::span<const int64_t> capacity);
  void searchFromBoth(const SinkFlow& flow, std::span<const int64_t> capacity);
  template <bool kForward>
  void grow(const SinkFlow& flow, std::span<const int64_t> capacity);
  void push(SinkFlow& flow, std::span<const int64_t> capacity, int through);

  const IntegerLinks& links_;
  std::vector<int64_t> excess_;  // by server: units that arrive and do not leave
  std::vector<int> unbalanced_;  // servers that may have an excess other than 0
  std::vector<char> listed_;     // by server: whether it is among them
  std::vector<int> reached_;
  Side from_excess_;
  Side to_deficit_;
  std::vector<std::pair<int, bool>> path_;  // links, and whether along them or back
  int stamp_ = 0;
  bool cut_by_excess_ = false;
};

}  // namespace topoopt
