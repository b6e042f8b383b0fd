#include "collectives/memory/team_segment.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "collectives/memory/shared_words.h"

namespace topoopt {
namespace {

constexpr size_t kSlots = 4;  // per member: contributions and results, for two parities
// A member's share of a chunk: fits the second-level cache, but outweighs the wait at its end.
constexpr size_t kShareBytes = 128 << 10;
constexpr size_t kMaxSlotsBytes = 16 << 20;  // of all members
constexpr size_t kMaxFailureBytes = 1500;
constexpr int kLooksPerTimeCheck = 32;
constexpr size_t kCallWords = sizeof(Called) / sizeof(uint64_t) + 1;
constexpr size_t kCallBytes = 2 * kCallWords * sizeof(uint64_t);

size_t slotBytesFor(int size) {
  const size_t share = kMaxSlotsBytes / (kSlots * static_cast<size_t>(size));
  return std::min(kShareBytes * static_cast<size_t>(size), share / kSharedPage * kSharedPage);
}

size_t tablesBytesFor(int size) {
  const auto members = static_cast<size_t>(size);
  const size_t bytes = 2 * 2 * sizeof(uint64_t) * members * members;
  return wholePages(bytes);
}

}  // namespace

struct TeamSegment::Header {
  alignas(kSharedLine) std::atomic<uint32_t> wakes;     // rises when sleepers must check
  alignas(kSharedLine) std::atomic<uint32_t> sleepers;  // members that sleep or are about to
  // 1: a member writes the reason, 2: it is written.
  alignas(kSharedLine) std::atomic<uint32_t> failed;
  char why[kMaxFailureBytes];
};

struct alignas(kSharedLine) TeamSegment::Cell {
  std::atomic<uint32_t> phase;  // last phase that this member has completed
  std::atomic<uint32_t> left;
  std::atomic<uint32_t> core;  // at its arrival
  uint32_t fingerprint[2];
  // By parity, on a line read only after an error: the call, and its number from 1 on.
  alignas(kCallBytes) std::atomic<uint64_t> calls[2][kCallWords];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

namespace {

constexpr size_t kHeaderBytes = 2048;

size_t cellsBytesFor(int size) {
  return wholePages(kHeaderBytes + static_cast<size_t>(size) * kSharedLine);
}

size_t messagesAt(int size) {
  return cellsBytesFor(size) + tablesBytesFor(size) +
         kSlots * slotBytesFor(size) * static_cast<size_t>(size);
}

size_t trialAt(int size) { return messagesAt(size) + MessageRings::bytesFor(size); }

}  // namespace

size_t TeamSegment::bytesFor(int size) {
  if (size < 1 || size > kMaxMembers) {
    throw std::invalid_argument("a local team of " + std::to_string(size) +
                                " members: it has 1 to " + std::to_string(kMaxMembers));
  }
  return trialAt(size) + StoreTrial::bytes();
}

TeamSegment::TeamSegment(int fd, int size)
    : size_(size), slot_bytes_(slotBytesFor(std::max(size, 1))) {
  static_assert(sizeof(Header) <= kHeaderBytes && sizeof(Cell) == kSharedLine);
  const size_t bytes = bytesFor(size);
  struct stat status{};
  if (fstat(fd, &status) != 0) throw std::system_error(errno, std::generic_category(), "fstat");
  if (static_cast<size_t>(status.st_size) < bytes) {
    throw std::invalid_argument("a segment of " + std::to_string(status.st_size) +
                                " bytes for a team that needs " + std::to_string(bytes));
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  close(fd);
  base_ = static_cast<std::byte*>(memory);
}

TeamSegment::~TeamSegment() { munmap(base_, bytesFor(size_)); }

// ---- places ------------------------------------------------------------------------------------

TeamSegment::Header& TeamSegment::header() const { return *reinterpret_cast<Header*>(base_); }

TeamSegment::Cell& TeamSegment::cell(int member) const {
  return *reinterpret_cast<Cell*>(base_ + kHeaderBytes + static_cast<size_t>(member) * kSharedLine);
}

uint32_t& TeamSegment::fingerprint(int member, uint32_t phase) const {
  return cell(member).fingerprint[phase % 2];
}

void TeamSegment::setCall(int member, uint32_t phase, const MemberCall& call) {
  const auto words = std::bit_cast<std::array<uint64_t, kCallWords - 1>>(call.called);
  auto& slot = cell(member).calls[phase % 2];
  for (size_t i = 0; i < words.size(); ++i) slot[i].store(words[i], std::memory_order_relaxed);
  slot[kCallWords - 1].store(call.number + 1, std::memory_order_relaxed);
}

std::optional<TeamSegment::MemberCall> TeamSegment::callAt(int member, uint32_t phase) const {
  const auto& slot = cell(member).calls[phase % 2];
  std::array<uint64_t, kCallWords - 1> words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = slot[i].load(std::memory_order_relaxed);
  const uint64_t number = slot[kCallWords - 1].load(std::memory_order_relaxed);
  const auto called = std::bit_cast<Called>(words);
  if (number == 0 || !isValid(called)) return std::nullopt;
  return MemberCall{called, number - 1};
}

std::optional<TeamSegment::MemberCall> TeamSegment::lastCall(int member) const {
  const auto even = callAt(member, 0);
  const auto odd = callAt(member, 1);
  if (!even || !odd) return even ? even : odd;
  return even->number > odd->number ? even : odd;
}

uint64_t* TeamSegment::table(int member, uint32_t phase) const {
  const size_t row = static_cast<size_t>(member) * 2 + phase % 2;
  return reinterpret_cast<uint64_t*>(base_ + cellsBytesFor(size_)) +
         2 * row * static_cast<size_t>(size_);
}

std::byte* TeamSegment::contribution(int member, uint32_t phase) const {
  std::byte* slots = base_ + cellsBytesFor(size_) + tablesBytesFor(size_);
  return slots + (static_cast<size_t>(member) * kSlots + phase % 2) * slot_bytes_;
}

std::byte* TeamSegment::result(int member, uint32_t phase) const {
  return contribution(member, phase) + 2 * slot_bytes_;
}

MessageRings TeamSegment::messages() const { return {base_ + messagesAt(size_), size_}; }

std::byte* TeamSegment::trialArea() const { return base_ + trialAt(size_); }

// ---- waiting -----------------------------------------------------------------------------------

// Sequentially consistent, as are sleepers and wakes. So the last to arrive sees a member that is
// about to sleep, or that member sees that all have arrived.
bool TeamSegment::arrived(int member, uint32_t phase) const {
  // Phases may wrap around; no member is ahead by half of the range.
  const uint32_t reached = cell(member).phase.load(std::memory_order_seq_cst);
  return static_cast<int32_t>(reached - phase) >= 0;
}

bool TeamSegment::allArrived(uint32_t phase) const {
  for (int member = 0; member < size_; ++member) {
    if (!arrived(member, phase)) return false;
  }
  return true;
}

void TeamSegment::arrive(int member, uint32_t phase) {
  cell(member).core.store(static_cast<uint32_t>(sched_getcpu()), std::memory_order_relaxed);
  cell(member).phase.store(phase, std::memory_order_seq_cst);
  // Only the last arrival concerns sleeping members.
  if (header().sleepers.load(std::memory_order_seq_cst) != 0 && allArrived(phase)) wakeSleepers();
}

void TeamSegment::wakeSleepers() { wakeAll(header().wakes); }

std::optional<TeamSegment::Waited> TeamSegment::state(int member, uint32_t phase) const {
  if (allArrived(phase)) return Waited::kAllArrived;
  if (failed()) return Waited::kFailed;
  if (left(member)) return Waited::kMemberLeft;
  for (int other = 0; other < size_; ++other) {
    if (left(other) && !arrived(other, phase)) return Waited::kMemberLeft;
  }
  return std::nullopt;
}

bool TeamSegment::onCoreOfMissing(uint32_t phase) const {
  const auto here = static_cast<uint32_t>(sched_getcpu());
  for (int member = 0; member < size_; ++member) {
    if (!arrived(member, phase) && cell(member).core.load(std::memory_order_relaxed) == here) {
      return true;
    }
  }
  return false;
}

// Polls for a short time. Yields first if a member needs this core, because it cannot arrive while
// this thread polls.
void TeamSegment::look(uint32_t phase) const {
  const Clock::time_point end = Clock::now() + kSharedLook;
  do {
    if (onCoreOfMissing(phase)) {
      sched_yield();
      continue;
    }
    for (int i = 0; i < kLooksPerTimeCheck; ++i) {
      if (allArrived(phase)) return;
      pauseCore();
    }
  } while (!allArrived(phase) && Clock::now() < end);
}

TeamSegment::Waited TeamSegment::waitAll(int member, uint32_t phase, TimeLimit& limit) {
  if (allArrived(phase)) return Waited::kAllArrived;
  look(phase);
  if (allArrived(phase)) return Waited::kAllArrived;
  header().sleepers.fetch_add(1, std::memory_order_seq_cst);
  const Waited waited = sleep(member, phase, limit);
  header().sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return waited;
}

TeamSegment::Waited TeamSegment::sleep(int member, uint32_t phase, TimeLimit& limit) {
  const std::optional<Clock::time_point> deadline = limit.deadline();
  for (;;) {
    const uint32_t seen = header().wakes.load(std::memory_order_seq_cst);
    if (const auto waited = state(member, phase)) return *waited;
    if (!sleepOn(header().wakes, seen, deadline)) return Waited::kDeadline;
  }
}

// ---- ends --------------------------------------------------------------------------------------

void TeamSegment::leave(int member) {
  cell(member).left.store(1, std::memory_order_seq_cst);
  wakeSleepers();
}

bool TeamSegment::left(int member) const {
  return cell(member).left.load(std::memory_order_seq_cst) != 0;
}

bool TeamSegment::fail(const std::string& why) {
  uint32_t none = 0;
  if (!header().failed.compare_exchange_strong(none, 1, std::memory_order_seq_cst)) return false;
  const size_t bytes = std::min(why.size(), kMaxFailureBytes - 1);
  std::memcpy(header().why, why.data(), bytes);
  header().why[bytes] = '\0';
  header().failed.store(2, std::memory_order_seq_cst);
  wakeSleepers();
  return true;
}

bool TeamSegment::failed() const { return header().failed.load(std::memory_order_seq_cst) != 0; }

std::string TeamSegment::failure() const {
  // The failed member may have died before it wrote the reason.
  for (int i = 0; i < 1000; ++i) {
    if (header().failed.load(std::memory_order_seq_cst) == 2) return header().why;
    std::this_thread::yield();
  }
  return "a member failed without saying why";
}

}  // namespace topoopt
