// The seed of all randomness in these tests: TOPOOPT_TEST_SEED, or 1.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>

namespace topoopt {

inline uint64_t testSeed() {
  const char* text = std::getenv("TOPOOPT_TEST_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

// `salt` distinguishes the tests, so that adding one does not change the others.
class TestRandom {
 public:
  explicit TestRandom(uint64_t salt) : engine_(testSeed() * 1000003 + salt) {}

  // In first..last, both included.
  size_t between(size_t first, size_t last) {
    return std::uniform_int_distribution<size_t>(first, last)(engine_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  uint64_t word() { return engine_(); }

  // Small sizes as often as large ones: 0, or 1..last spread evenly over the orders of magnitude.
  size_t size(size_t last) {
    if (chance(0.05) || last == 0) return 0;
    const double exponent =
        std::uniform_real_distribution<double>(0, std::log2(static_cast<double>(last)))(engine_);
    return static_cast<size_t>(std::exp2(exponent));
  }

  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace topoopt
