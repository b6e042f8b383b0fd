// The received packets of a flow, in any order.

#pragma once

#include <cstdint>
#include <vector>

namespace topoopt::packet {

// The first missing packet, and a bit for each later one up to the last received: no memory while
// packets arrive in order.
class Received {
 public:
  // Returns false for a duplicate.
  bool add(uint32_t seq) {
    if (seq < expected_) return false;
    const uint32_t place = seq - base_;
    if (seq == expected_ && bits_.empty()) {
      ++expected_;
      ++count_;
      base_ = expected_;
      return true;
    }
    if (place / 64 >= bits_.size()) bits_.resize(place / 64 + 1, 0);
    const uint64_t bit = uint64_t{1} << (place % 64);
    if (bits_[place / 64] & bit) return false;
    bits_[place / 64] |= bit;
    ++count_;
    while (has(expected_)) ++expected_;
    // All packets are in order, or many of them: restart the bits.
    if (count_ == expected_) {
      bits_.clear();
      base_ = expected_;
    } else if (const uint32_t words = (expected_ - base_) / 64;
               words >= kSlack && 2 * words > bits_.size()) {
      bits_.erase(bits_.begin(), bits_.begin() + words);
      base_ += 64 * words;
    }
    return true;
  }
  bool has(uint32_t seq) const {
    if (seq < expected_) return true;
    const uint32_t place = seq - base_;
    return place / 64 < bits_.size() && (bits_[place / 64] >> (place % 64) & 1);
  }
  uint32_t expected() const { return expected_; }
  uint32_t count() const { return count_; }

 private:
  static constexpr uint32_t kSlack = 16;

  uint32_t expected_ = 0;  // all earlier packets have arrived
  uint32_t count_ = 0;
  uint32_t base_ = 0;  // packet of the first bit; not above expected_
  std::vector<uint64_t> bits_;
};

}  // namespace topoopt::packet
