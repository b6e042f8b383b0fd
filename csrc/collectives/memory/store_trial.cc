#include "collectives/memory/store_trial.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

namespace topoopt {
namespace {

using Clock = std::chrono::steady_clock;

// As for messages: frames through a ring whose lines are reused.
constexpr size_t kFrameBytes = 32 << 10;
constexpr uint32_t kFrames = 8;
constexpr size_t kBytes = kFrames * kFrameBytes;
constexpr uint32_t kRounds = 5;  // with each kind of store; the first one warms the memory
constexpr uint32_t kAllFrames = 2 * kRounds * kFrames;
constexpr int kLooksPerClock = 64;

// Waits until `word` is at least `value`; returns false at `end`.
bool reaches(const std::atomic<uint32_t>& word, uint32_t value, Clock::time_point end) {
  for (int looks = 1; word.load(std::memory_order_acquire) < value; ++looks) {
    pauseCore();
    if (looks % kLooksPerClock != 0) continue;
    if (Clock::now() >= end) return false;
    sched_yield();  // the peer may need this core
  }
  return true;
}

}  // namespace

struct StoreTrial::Area {
  // Steps of each peer in all trials: one per frame and one for the result. A trial starts at a
  // number beyond all earlier trials.
  alignas(kSharedLine) std::atomic<uint32_t> written;
  alignas(kSharedLine) std::atomic<uint32_t> read;
  alignas(kSharedLine) std::atomic<Stores> result;
  alignas(kSharedPage) std::array<std::byte, kBytes> ring;
  std::array<std::atomic<Stores>, kMaxMembers> known;  // initially, by member

  std::byte* frame(uint32_t number) { return ring.data() + number % kFrames * kFrameBytes; }
};

size_t StoreTrial::bytes() { return sizeof(Area); }

StoreTrial::StoreTrial(std::byte* memory, int member, int size)
    : memory_(memory), member_(member), size_(size) {
  area().known[static_cast<size_t>(member)].store(knownStores().load(std::memory_order_relaxed),
                                                  std::memory_order_relaxed);
}

StoreTrial::Area& StoreTrial::area() const { return *reinterpret_cast<Area*>(memory_); }

Stores StoreTrial::result() const {
  for (int member = 0; member < size_; ++member) {
    const Stores known = area().known[static_cast<size_t>(member)].load(std::memory_order_relaxed);
    if (known != Stores::kUnknown) return known;
  }
  return area().result.load(std::memory_order_acquire);
}

void StoreTrial::adopt() const {
  const Stores found = result();
  if (found != Stores::kUnknown) knownStores().store(found, std::memory_order_relaxed);
}

void StoreTrial::run(uint32_t attempt) const {
  if (!kHasStreamingStores || member_ > 1 || result() != Stores::kUnknown) return;
  const TimePoint end = Clock::now() + kLimit;
  const uint32_t first = attempt * 2 * kAllFrames;
  if (member_ == 0) {
    write(first, end);
  } else {
    read(first, end);
  }
}

void StoreTrial::write(uint32_t first, TimePoint end) const {
  Area& shared = area();
  std::vector<std::byte> source(kBytes);
  std::array<Clock::duration, 2> least;
  least.fill(Clock::duration::max());
  uint32_t written = first;
  for (uint32_t round = 0; round < 2 * kRounds; ++round) {
    const Stores stores = round % 2 == 0 ? Stores::kStreaming : Stores::kPlain;
    std::memset(source.data(), static_cast<int>(round), kBytes);  // new data, as in a usual send
    const TimePoint begin = Clock::now();
    for (uint32_t i = 0; i < kFrames; ++i) {
      const bool fills = written < first + kFrames;
      if (!fills && !reaches(shared.read, written - kFrames + 1, end)) return;
      copyToOthers(shared.frame(written), source.data() + i * kFrameBytes, kFrameBytes, stores);
      shared.written.store(++written, std::memory_order_release);
    }
    if (!reaches(shared.read, written, end)) return;
    if (round >= 2) least[round % 2] = std::min(least[round % 2], Clock::now() - begin);
  }
  shared.result.store(least[0] < least[1] ? Stores::kStreaming : Stores::kPlain,
                      std::memory_order_release);
  shared.written.store(written + 1, std::memory_order_release);
}

void StoreTrial::read(uint32_t first, TimePoint end) const {
  Area& shared = area();
  std::vector<std::byte> target(kBytes);
  const uint32_t last = first + kAllFrames;
  for (uint32_t next = first; next < last; ++next) {
    if (!reaches(shared.written, next + 1, end)) return;
    std::memcpy(target.data() + next % kFrames * kFrameBytes, shared.frame(next), kFrameBytes);
    shared.read.store(next + 1, std::memory_order_release);
  }
  reaches(shared.written, last + 1, end);
}

}  // namespace topoopt
