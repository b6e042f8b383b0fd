// A small random generator with equal results on all platforms.

#pragma once

#include <cstdint>

namespace topoopt {

// xoshiro256** (Blackman and Vigna, 2018), state filled by splitmix64 from one seed.
class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) {
      seed += 0x9e3779b97f4a7c15;
      uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      word = z ^ (z >> 31);
    }
  }

  uint64_t next() {
    const uint64_t result = rotate(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound), bound at least 1; redraws to avoid the bias of a remainder.
  int below(int bound) {
    const uint64_t range = static_cast<uint64_t>(bound);
    const uint64_t limit = UINT64_MAX - UINT64_MAX % range;
    uint64_t value = next();
    while (value >= limit) value = next();
    return static_cast<int>(value % range);
  }

  // Uniform in [0, 1), 53 bits.
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  static uint64_t rotate(uint64_t value, int bits) {
    return (value << bits) | (value >> (64 - bits));
  }

  uint64_t state_[4];
};

}  // namespace topoopt
