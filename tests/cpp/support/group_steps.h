// The members of a group, and random sequences of operations for them with the results that must
// come out.

#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/group/group.h"
#include "collectives/memory/team_segment.h"
#include "support/network.h"

namespace topoopt {

// A new memfd for a team of `size` members.
int sharedMemory(int size);

class Members {
 public:
  // `ranks` of the network form the group; its rings visit them in random orders.
  Members(Network& network, uint32_t channel, const std::vector<int>& ranks, size_t ring_count,
          TestRandom& random, bool share_memory = false);
  Members(Network& network, uint32_t channel, const std::vector<int>& ranks,
          const std::vector<plan::Ring>& rings, bool share_memory = false);
  ~Members() { shutdown(); }

  int size() const { return static_cast<int>(groups_.size()); }
  Group& operator[](int member) { return *groups_[member]; }

  void shutdown();
  void shutdownOn(int rank);  // of the network; nothing if it is no member

 private:
  const std::vector<int> ranks_;
  std::vector<std::shared_ptr<Group>> groups_;
};

// One operation on all members of a group. The functions own its memory.
struct Step {
  std::string name;
  std::function<void(Group&, int member, Done)> start;
  std::function<bool()> right;
  std::vector<Outcome> outcomes;
};

// Must be made before the network, since it owns the memory of the operations.
class Steps {
 public:
  // `synchronous`: as if their callers waited for the operations.
  Steps(int size, size_t count, size_t max_elements, TestRandom& random, bool synchronous = false);

  size_t count() const { return steps_.size(); }
  // All operations, each member from its own thread; returns when all are called.
  void start(Members& members);
  void startOne(size_t step, Group& group, int member);
  // Waits for all and checks the results.
  void check();

 private:
  std::deque<Step> steps_;
};

}  // namespace topoopt
