// A queue of items by time, for times that mostly arrive in order.

#pragma once

#include <algorithm>
#include <functional>
#include <vector>

namespace topoopt {

// Items come out by time, then by number. What arrives in order costs nothing to sort: it waits in
// a plain line, and only what overtakes goes through a heap.
class EventQueue {
 public:
  struct Event {
    double time;
    int item;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : item > other.item;
    }
  };

  bool empty() const { return head_ == line_.size() && heap_.empty(); }
  const Event& top() const { return fromLine() ? line_[head_] : heap_.front(); }

  void clear() {
    line_.clear();
    head_ = 0;
    heap_.clear();
  }

  void push(double time, int item) {
    const Event event{time, item};
    if (head_ == line_.size()) {
      line_.clear();
      head_ = 0;
    }
    if (line_.empty() || event > line_.back()) {
      if (head_ > kSlack && 2 * head_ > line_.size()) dropTaken();
      line_.push_back(event);
    } else {
      heap_.push_back(event);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  }

  Event pop() {
    if (fromLine()) return line_[head_++];
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  static constexpr size_t kSlack = 1024;

  bool fromLine() const {
    return heap_.empty() || (head_ < line_.size() && heap_.front() > line_[head_]);
  }

  void dropTaken() {
    line_.erase(line_.begin(), line_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }

  std::vector<Event> line_;  // ascending from head_ on
  size_t head_ = 0;
  std::vector<Event> heap_;
};

}  // namespace topoopt
