// The tasks of one run: compute tasks, flows and delays with dependencies.

#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
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
    devices_at_once_ = std::numeric_limits<double>::infinity();
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

  // So many devices compute at full speed at once (infinity: all of them). While more of them
  // compute, they share that evenly, as processes share the processors of one machine. Throws
  // std::invalid_argument for a number that is not above 0.
  void setDevicesAtOnce(double count) {
    if (!(count > 0)) {
      throw std::invalid_argument("devices_at_once: " + std::to_string(count) + " is not above 0");
    }
    devices_at_once_ = count;
  }
  double devicesAtOnce() const { return devices_at_once_; }

  int size() const { return static_cast<int>(tasks_.size()); }
  const std::vector<Task>& tasks() const { return tasks_; }
  const std::vector<std::pair<int, int>>& dependencies() const { return dependencies_; }

 private:
  std::vector<Task> tasks_;
  std::vector<std::pair<int, int>> dependencies_;
  double devices_at_once_ = std::numeric_limits<double>::infinity();
};

}  // namespace topoopt
