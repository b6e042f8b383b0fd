// A heap of numbered items whose keys change.

#pragma once

#include <utility>
#include <vector>

namespace topoopt {

// The item of the smallest key on top, ties by number. Every item is in it at most once, so keys
// that change often do not fill it with what is out of date.
class IndexedHeap {
 public:
  // Empties the heap; items are 0..count-1 from now on.
  void reset(int count) {
    for (const Entry& entry : entries_) place_[entry.item] = -1;
    entries_.clear();
    place_.resize(count, -1);
  }

  bool empty() const { return entries_.empty(); }
  int top() const { return entries_.front().item; }
  double topKey() const { return entries_.front().key; }

  // Inserts `item`, or gives it another key.
  void set(int item, double key) {
    int at = place_[item];
    if (at < 0) {
      at = static_cast<int>(entries_.size());
      entries_.push_back({key, item});
      place_[item] = at;
    } else {
      entries_[at].key = key;
    }
    down(up(at));
  }

  // Removes `item` if it is there.
  void remove(int item) {
    const int at = place_[item];
    if (at < 0) return;
    place_[item] = -1;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (last.item == item) return;
    entries_[at] = last;
    place_[last.item] = at;
    down(up(at));
  }

 private:
  struct Entry {
    double key;
    int item;
    bool operator<(const Entry& other) const {
      return key != other.key ? key < other.key : item < other.item;
    }
  };
  static constexpr int kArity = 4;  // shallower than two, and four entries share a cache line

  int up(int at) {
    const Entry entry = entries_[at];
    while (at > 0 && entry < entries_[(at - 1) / kArity]) {
      put(at, entries_[(at - 1) / kArity]);
      at = (at - 1) / kArity;
    }
    put(at, entry);
    return at;
  }

  void down(int at) {
    const Entry entry = entries_[at];
    const int size = static_cast<int>(entries_.size());
    while (true) {
      const int first = kArity * at + 1;
      int least = first;
      if (first >= size) break;
      for (int child = first + 1; child < first + kArity && child < size; ++child) {
        if (entries_[child] < entries_[least]) least = child;
      }
      if (!(entries_[least] < entry)) break;
      put(at, entries_[least]);
      at = least;
    }
    put(at, entry);
  }

  void put(int at, const Entry& entry) {
    entries_[at] = entry;
    place_[entry.item] = at;
  }

  std::vector<Entry> entries_;
  std::vector<int> place_;  // per item: index into entries_, -1 if absent
};

}  // namespace topoopt
