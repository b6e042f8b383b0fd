#include "collectives/memory/copy_trial.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "collectives/memory/shared_words.h"

namespace topoopt {
namespace {

using Clock = std::chrono::steady_clock;

// As messages are copied: frames through a ring whose lines are used again and again.
constexpr size_t kFrameBytes = 32 << 10;
constexpr uint32_t kFrames = 8;
constexpr size_t kBytes = kFrames * kFrameBytes;
// With each kind of store, and by the kernel; the first one finds cold memory.
constexpr int kRounds = 5;
constexpr uint32_t kAllFrames = 2 * kRounds * kFrames;
constexpr int kLooksPerTimeCheck = 64;

constexpr uint32_t kMeasured = 1;
constexpr uint32_t kStreams = 2;
constexpr uint32_t kPulls = 4;

std::atomic<uint32_t> known{0};

uint32_t wordOf(const CopyWays& ways) {
  if (!ways.measured) return 0;
  return kMeasured | (ways.streams ? kStreams : 0) | (ways.pulls ? kPulls : 0);
}

CopyWays waysOf(uint32_t word) {
  if ((word & kMeasured) == 0) return {};
  return {true, (word & kStreams) != 0, (word & kPulls) != 0};
}

// Until `word` is at least `value`; whether that was before `end`.
bool reaches(const std::atomic<uint32_t>& word, uint32_t value, Clock::time_point end) {
  for (int looks = 1; word.load(std::memory_order_acquire) < value; ++looks) {
    pauseCore();
    if (looks % kLooksPerTimeCheck != 0) continue;
    if (Clock::now() >= end) return false;
    sched_yield();  // the other one may need this core
  }
  return true;
}

uint64_t nanosecondsSince(Clock::time_point begin) {
  const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
  return static_cast<uint64_t>(std::max<int64_t>(taken.count(), 1));
}

}  // namespace

CopyWays knownCopyWays() { return waysOf(known.load(std::memory_order_relaxed)); }

void setKnownCopyWays(const CopyWays& ways) {
  known.store(wordOf(ways), std::memory_order_relaxed);
  storesPastCaches().store(ways.streams, std::memory_order_relaxed);
}

struct CopyTrial::Area {
  // Steps that each of the two has done, in all trials: frames, one for pulls, and one for the
  // result. A trial begins at a number that those before it cannot have reached.
  alignas(kSharedLine) std::atomic<uint32_t> written;
  alignas(kSharedLine) std::atomic<uint32_t> read;
  alignas(kSharedLine) std::atomic<uint64_t> source;  // of pulls, in the process of member 0
  std::atomic<uint64_t> pull_ns;                      // 0: they failed
  std::atomic<uint32_t> result;
  alignas(kSharedPage) std::array<std::byte, kBytes> ring;

  std::byte* frame(uint32_t number) { return ring.data() + number % kFrames * kFrameBytes; }
};

size_t CopyTrial::bytesFor(int size) {
  return sizeof(Area) + wholePages(static_cast<size_t>(size) * sizeof(std::atomic<uint32_t>));
}

CopyTrial::CopyTrial(std::byte* memory, int member, int size)
    : memory_(memory), member_(member), size_(size) {
  auto* const words = reinterpret_cast<std::atomic<uint32_t>*>(memory_ + sizeof(Area));
  words[member].store(known.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

CopyTrial::Area& CopyTrial::area() const { return *reinterpret_cast<Area*>(memory_); }

CopyWays CopyTrial::result() const {
  const auto* const words = reinterpret_cast<const std::atomic<uint32_t>*>(memory_ + sizeof(Area));
  for (int member = 0; member < size_; ++member) {
    const CopyWays ways = waysOf(words[member].load(std::memory_order_relaxed));
    if (ways.measured) return ways;
  }
  return waysOf(area().result.load(std::memory_order_acquire));
}

void CopyTrial::run(const PeerMemory& peers, uint32_t attempt) const {
  if (member_ > 1 || result().measured) return;
  const Clock::time_point end = Clock::now() + kLimit;
  const uint32_t begin = attempt * 2 * kAllFrames;
  if (member_ == 0) {
    write(begin, end);
  } else {
    read(peers, begin, end);
  }
}

void CopyTrial::adopt() const {
  if (const CopyWays ways = result(); ways.measured) setKnownCopyWays(ways);
}

void CopyTrial::write(uint32_t first, Clock::time_point end) const {
  Area& shared = area();
  const std::vector<std::byte> source(kBytes, std::byte{1});
  std::array<uint64_t, 2> least_ns{UINT64_MAX, UINT64_MAX};
  uint32_t written = first;
  for (int round = 0; round < 2 * kRounds; ++round) {
    const bool streams = round % 2 == 0;
    const Clock::time_point begin = Clock::now();
    for (uint32_t i = 0; i < kFrames; ++i) {
      const bool fills = written < first + kFrames;
      if (!fills && !reaches(shared.read, written - kFrames + 1, end)) return;
      copyToOthers(shared.frame(written), source.data() + i * kFrameBytes, kFrameBytes, streams);
      shared.written.store(++written, std::memory_order_release);
    }
    if (!reaches(shared.read, written, end)) return;
    if (round >= 2) least_ns[streams] = std::min(least_ns[streams], nanosecondsSince(begin));
  }
  shared.source.store(reinterpret_cast<uint64_t>(source.data()), std::memory_order_relaxed);
  shared.written.store(written + 1, std::memory_order_release);
  if (!reaches(shared.read, written + 1, end)) return;
  const uint64_t pull_ns = shared.pull_ns.load(std::memory_order_relaxed);
  const CopyWays ways{true, least_ns[1] < least_ns[0],
                      pull_ns != 0 && pull_ns < std::min(least_ns[0], least_ns[1])};
  shared.result.store(wordOf(ways), std::memory_order_release);
  shared.written.store(written + 2, std::memory_order_release);
}

void CopyTrial::read(const PeerMemory& peers, uint32_t first, Clock::time_point end) const {
  Area& shared = area();
  std::vector<std::byte> target(kBytes);
  const uint32_t last = first + kAllFrames;
  for (uint32_t next = first; next < last; ++next) {
    if (!reaches(shared.written, next + 1, end)) return;
    std::memcpy(target.data() + next % kFrames * kFrameBytes, shared.frame(next), kFrameBytes);
    shared.read.store(next + 1, std::memory_order_release);
  }
  if (!reaches(shared.written, last + 1, end)) return;
  const uint64_t source = shared.source.load(std::memory_order_relaxed);
  uint64_t least_ns = UINT64_MAX;
  bool pulled = peers.reaches(0).value_or(false);
  for (int round = 0; round < kRounds && pulled; ++round) {
    const Clock::time_point begin = Clock::now();
    pulled = peers.read(0, source, target.data(), kBytes);
    least_ns = std::min(least_ns, nanosecondsSince(begin));
  }
  shared.pull_ns.store(pulled ? least_ns : 0, std::memory_order_relaxed);
  shared.read.store(last + 1, std::memory_order_release);
  reaches(shared.written, last + 2, end);
}

}  // namespace topoopt
