// A queue of items by time, for times that mostly arrive in order.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

namespace topoopt {

// Events that arrive in order need no sorting: they wait in lines. Several lines hold events with a
// few distinct delays, each in order; only an event out of order in all lines uses a heap.
class EventQueue {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Event {
    double time;
    int item;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : item > other.item;
    }
    bool operator<(const Event& other) const { return other > *this; }
  };

  // Time of the first event; kNever if empty.
  double least() const { return least_; }
  bool empty() const { return least_ == kNever; }

  void clear() {
    for (Line& line : lines_) line.clear();
    heap_.clear();
    least_ = kNever;
  }

  // `time` must be finite.
  void push(double time, int item) {
    least_ = std::min(least_, time);
    for (Line& line : lines_) {
      if (!line.waiting.empty() && time < line.waiting.back().time) continue;
      line.waiting.push_back({time, item});
      return;
    }
    heap_.push_back({time, item});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  // Moves the events up to `limit` to `taken`, in any order.
  void take(double limit, std::vector<Event>& taken) {
    if (least_ > limit) return;
    least_ = kNever;
    for (Line& line : lines_) {
      line.take(limit, taken);
      if (!line.waiting.empty()) least_ = std::min(least_, line.waiting[line.head].time);
    }
    while (!heap_.empty() && heap_.front().time <= limit) {
      taken.push_back(heap_.front());
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.pop_back();
    }
    if (!heap_.empty()) least_ = std::min(least_, heap_.front().time);
  }

 private:
  static constexpr int kLines = 8;
  static constexpr size_t kSlack = 1024;

  struct Line {
    std::vector<Event> waiting;  // ascending from head on
    size_t head = 0;

    void take(double limit, std::vector<Event>& taken) {
      while (head < waiting.size() && waiting[head].time <= limit) taken.push_back(waiting[head++]);
      if (head == waiting.size()) {
        clear();
      } else if (head > kSlack && 2 * head > waiting.size()) {
        waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(head));
        head = 0;
      }
    }
    void clear() {
      waiting.clear();
      head = 0;
    }
  };

  std::array<Line, kLines> lines_;
  std::vector<Event> heap_;
  double least_ = kNever;
};

}  // namespace topoopt
