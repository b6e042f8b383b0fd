// A queue in a contiguous block of memory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace topoopt::packet {

// First in, first out. A full block doubles, and a large one is freed when the queue is empty, so
// memory follows the current length.
template <typename T>
class RingBuffer {
 public:
  bool empty() const { return head_ == tail_; }
  uint32_t size() const { return tail_ - head_; }

  void push(const T& item) {
    if (size() == capacity_) grow();
    items_[tail_++ & (capacity_ - 1)] = item;
  }
  T& front() { return items_[head_ & (capacity_ - 1)]; }
  T& back() { return items_[(tail_ - 1) & (capacity_ - 1)]; }
  // The item `index` places behind the front.
  const T& operator[](uint32_t index) const { return items_[(head_ + index) & (capacity_ - 1)]; }

  T pop() {
    T item = front();
    if (++head_ == tail_ && capacity_ > kKept) clear();
    return item;
  }

  void clear() {
    items_.reset();
    capacity_ = head_ = tail_ = 0;
  }

 private:
  static constexpr uint32_t kKept = 4096;

  void grow() {
    const uint32_t capacity = capacity_ == 0 ? 4 : 2 * capacity_;
    auto items = std::make_unique_for_overwrite<T[]>(capacity);
    const uint32_t count = size();
    for (uint32_t i = 0; i < count; ++i) items[i] = (*this)[i];
    items_ = std::move(items);
    capacity_ = capacity;
    head_ = 0;
    tail_ = count;
  }

  std::unique_ptr<T[]> items_;
  uint32_t capacity_ = 0;         // a power of two
  uint32_t head_ = 0, tail_ = 0;  // total counts, modulo 2^32
};

}  // namespace topoopt::packet
