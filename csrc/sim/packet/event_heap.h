// A heap of events in which each source has at most one.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/packet/packet.h"

namespace topoopt::packet {

// Events are ordered by time, then source number, so the order of insertion does not matter. Four
// children per node make the heap flatter and share a cache line.
class EventHeap {
 public:
  bool empty() const { return keys_.empty(); }
  // The time of the first event; kNever if empty.
  Picoseconds topTime() const {
    return keys_.empty() ? kNever : static_cast<Picoseconds>(keys_.front() >> 32);
  }
  uint32_t topSource() const { return static_cast<uint32_t>(keys_.front()); }
  size_t size() const { return keys_.size(); }
  void clear() { keys_.clear(); }

  void push(Picoseconds time, uint32_t source) {
    const Key key = makeKey(time, source);
    size_t at = keys_.size();
    keys_.push_back(key);
    while (at > 0) {
      const size_t parent = (at - 1) / 4;
      if (keys_[parent] <= key) break;
      keys_[at] = keys_[parent];
      at = parent;
    }
    keys_[at] = key;
  }

  void pop() {
    const Key last = keys_.back();
    keys_.pop_back();
    if (!keys_.empty()) sink(last);
  }

  // Sets the next time of the first event's source.
  void replaceTop(Picoseconds time) { sink(makeKey(time, topSource())); }

 private:
  using Key = unsigned __int128;  // time, then source: one comparison without branches

  static Key makeKey(Picoseconds time, uint32_t source) {
    return (static_cast<Key>(static_cast<uint64_t>(time)) << 32) | source;
  }

  void sink(Key key) {
    const size_t size = keys_.size();
    size_t at = 0;
    while (true) {
      const size_t first = 4 * at + 1;
      if (first >= size) break;
      size_t least = first;
      if (first + 4 <= size) {
        const size_t a = keys_[first + 1] < keys_[first] ? first + 1 : first;
        const size_t b = keys_[first + 3] < keys_[first + 2] ? first + 3 : first + 2;
        least = keys_[b] < keys_[a] ? b : a;
      } else {
        for (size_t child = first + 1; child < size; ++child) {
          if (keys_[child] < keys_[least]) least = child;
        }
      }
      if (key <= keys_[least]) break;
      keys_[at] = keys_[least];
      at = least;
    }
    keys_[at] = key;
  }

  std::vector<Key> keys_;
};

}  // namespace topoopt::packet
