// The dependents of each task in a task graph; shared lists are stored once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/task_graph.h"

namespace topoopt {

// In consecutive all-to-alls, every flow of a host depends on the same flows: n^3 dependencies.
// Tasks with equal lists share a node that counts the list down, which leaves n^2 steps. A list is
// the consecutive additions for one task.
class Dependents {
 public:
  // With `repeated`, tasks may start again, once more for each completion of their dependencies.
  void prepare(const TaskGraph& graph, bool repeated = false);

  // Returns whether the task has no open dependencies.
  bool isFree(int task) const { return waiting_[task] == 0; }
  // Returns whether the task has open dependencies.
  bool isWaiting(int task) const { return waiting_[task] > 0; }

  // `task` is done: calls start(t) for every task t without further open dependencies.
  template <typename Start>
  void release(int task, const Start& start) {
    for (int i = begin_[task]; i < begin_[task + 1]; ++i) {
      const int node = nodes_[i];
      if (!countDown(node)) continue;
      if (node < tasks_) {
        start(node);
        continue;
      }
      const int list = node - tasks_;
      for (int m = member_begin_[list]; m < member_begin_[list + 1]; ++m) {
        if (countDown(members_[m])) start(members_[m]);
      }
    }
  }

 private:
  using Pair = std::pair<int, int>;
  struct List {
    const Pair* first;
    int size;
    uint64_t hash;
  };

  // Removes a dependency; returns whether it was the last. Repeated nodes then reset their count,
  // which is safe because no dependency completes twice before the node's own task.
  bool countDown(int node) {
    if (--waiting_[node] > 0) return false;
    if (!first_waiting_.empty()) waiting_[node] = first_waiting_[node];
    return true;
  }
  int listOf(const Pair* first, int size);
  void addEdges();

  int tasks_ = 0;
  std::vector<int> waiting_;        // open dependencies per node (tasks, then lists)
  std::vector<int> first_waiting_;  // initial values; only if repeated
  std::vector<int> begin_, nodes_;  // per task: dependent nodes
  std::vector<List> lists_;
  std::vector<int> member_begin_, members_;  // per list: dependent tasks
  std::vector<Pair> of_list_;                // (list, member)
  std::vector<Pair> single_;                 // (before, after) of single dependencies
  std::vector<int> table_;                   // of lists by hash, open addressing
  std::vector<int> next_;
};

}  // namespace topoopt
