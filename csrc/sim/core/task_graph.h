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

// kCompute: `amount` seconds on device `resource`, one task at a time per device, by lowest
//   `priority`, then index.
// kFlow: `amount` bytes on path `resource`, delivered `latency_s` after the last byte was sent.
// kDelay: `amount` seconds without a resource.
struct Task {
  TaskKind kind;
  int resource;
  int priority;
  double amount;
  double latency_s;
};

// Repeats tasks `first` to `end` from `start_s` on: a round begins when `end`, which depends on all
// others, has finished. No dependencies with other tasks are allowed.
struct Loop {
  int first;
  int end;
  double start_s;
};

class TaskGraph {
 public:
  void clear() {
    tasks_.clear();
    dependencies_.clear();
    loops_.clear();
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

  // `after` starts when all of its dependencies, `before` among them, are done.
  void addDependency(int before, int after) { dependencies_.emplace_back(before, after); }

  // Throws std::invalid_argument unless 0 <= first <= end < size(), after all earlier loops, and
  // start_s is finite and not negative.
  void addLoop(const Loop& loop) {
    const std::string name = "loops[" + std::to_string(loops_.size()) + "]";
    const int behind = loops_.empty() ? 0 : loops_.back().end + 1;
    if (loop.first < behind || loop.end < loop.first || loop.end >= size()) {
      throw std::invalid_argument(name + ": tasks " + std::to_string(loop.first) + " to " +
                                  std::to_string(loop.end) + " are not a part of " +
                                  std::to_string(behind) + ".." + std::to_string(size() - 1));
    }
    if (!(loop.start_s >= 0 && loop.start_s < std::numeric_limits<double>::infinity())) {
      throw std::invalid_argument(name + ".start_s: " + std::to_string(loop.start_s) +
                                  " is not a finite time from 0 on");
    }
    loops_.push_back(loop);
  }
  const std::vector<Loop>& loops() const { return loops_; }

  // Number of devices at full speed (infinity: all). When more compute, they share it evenly, like
  // processes on the processors of a machine. Throws std::invalid_argument unless positive.
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
  std::vector<Loop> loops_;
  double devices_at_once_ = std::numeric_limits<double>::infinity();
};

}  // namespace topoopt
