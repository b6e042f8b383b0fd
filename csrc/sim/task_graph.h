// What happens in one run: compute tasks, flows and delays with dependencies.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace topoopt {

enum class TaskKind : uint8_t { kCompute, kFlow, kDelay };

// kCompute: `amount` seconds on device `resource`, one task at a time per device, the ready task of
//   lowest `priority` (then lowest index) first.
// kFlow: `amount` bytes on path `resource`, delivered `latency_s` after the last byte was sent.
// kDelay: `amount` seconds that occupy nothing.
struct Task {
  TaskKind kind;
  int resource;
  int priority;
  double amount;
  double latency_s;
};

class TaskGraph {
 public:
  void clear() {
    tasks_.clear();
    dependencies_.clear();
  }
  int addCompute(int device, double seconds, int priority) {
    return add({TaskKind::kCompute, device, priority, seconds, 0.0});
  }
  int addFlow(int path, double size_bytes, double latency_s) {
    return add({TaskKind::kFlow, path, 0, size_bytes, latency_s});
  }
  int addDelay(double seconds) { return add({TaskKind::kDelay, -1, 0, seconds, 0.0}); }
  int add(const Task& task) {
    tasks_.push_back(task);
    return size() - 1;
  }

  // `after` starts when `before` and all its other dependencies are done.
  void addDependency(int before, int after) { dependencies_.emplace_back(before, after); }

  int size() const { return static_cast<int>(tasks_.size()); }
  const std::vector<Task>& tasks() const { return tasks_; }
  const std::vector<std::pair<int, int>>& dependencies() const { return dependencies_; }

 private:
  std::vector<Task> tasks_;
  std::vector<std::pair<int, int>> dependencies_;
};

}  // namespace topoopt
