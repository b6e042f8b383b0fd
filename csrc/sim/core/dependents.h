// The dependents of each task in a task graph; lists that several tasks share are stored once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/task_graph.h"

namespace topoopt {

// In an all-to-all behind an all-to-all, every flow of a host waits for the same flows: n^3
// dependencies. Tasks that wait for the same list share one node that counts the list down, so n^2
// steps are left. A list is what was added for one task without another in between.
class Dependents {
 public:
  // With `repeated`, what has been started may be waited for again, once more by each.
  void prepare(const TaskGraph& graph, bool repeated = false);

  // Whether the task waits for nothing.
  bool isFree(int task) const { return waiting_[task] == 0; }
  // Whether the task waits for something that has not been done yet.
  bool isWaiting(int task) const { return waiting_[task] > 0; }

  // `task` is done: calls start(t) for every task t that has waited for nothing else.
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

  // One dependency less; whether it was the last. Where tasks are repeated, the node then waits for
  // all of them again: none can be done twice before the node's own task has been.
  bool countDown(int node) {
    if (--waiting_[node] > 0) return false;
    if (!first_waiting_.empty()) waiting_[node] = first_waiting_[node];
    return true;
  }
  int listOf(const Pair* first, int size);
  void addEdges();

  int tasks_ = 0;
  std::vector<int> waiting_;        // per node (tasks, then lists): its open dependencies
  std::vector<int> first_waiting_;  // the same before anything is done; only where repeated
  std::vector<int> begin_, nodes_;  // per task: nodes that wait for it
  std::vector<List> lists_;
  std::vector<int> member_begin_, members_;  // per list: tasks that wait for all of it
  std::vector<Pair> of_list_;                // (list, member)
  std::vector<Pair> single_;                 // (before, after) of lists of one
  std::vector<int> table_;                   // of lists by hash, open addressing
  std::vector<int> next_;
};

}  // namespace topoopt
