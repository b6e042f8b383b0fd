#include "collectives/memory/peer_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "collectives/memory/shared_words.h"
#include "common/host_reach.h"

namespace topoopt {
namespace {

enum : int8_t { kUnknown, kReached, kUnreached };

uint64_t newProof() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32) | random() | 1;
}

// Yama's scope 1 lets a process read its descendants only; those of one parent, after each of them
// has named it. A later call takes the place of an earlier one.
void allowDescendantsOfParent() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  if (file >> scope && scope == 1) {
    prctl(PR_SET_PTRACER, static_cast<unsigned long>(getppid()), 0, 0, 0);
  }
}

bool readFrom(pid_t process, uint64_t address, void* to, size_t bytes) {
  auto* next = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const iovec local{next, bytes};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
    const iovec remote{reinterpret_cast<void*>(address), bytes};
    const ssize_t count = process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (count <= 0) return false;
    next += count;
    address += static_cast<uint64_t>(count);
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

struct alignas(kSharedLine) PeerMemory::Entry {
  std::atomic<uint64_t> proof;
  std::atomic<uint64_t> address;  // of the proof in the member's process; 0: it cannot be read
  std::atomic<int32_t> process;   // stored last; 0: not published
  std::atomic<uint32_t> verdict;  // 1: reads all others
};

size_t PeerMemory::bytesFor(int size) {
  return wholePages(static_cast<size_t>(size) * sizeof(Entry));
}

PeerMemory::PeerMemory(std::byte* table, int member, int size, bool allowed)
    : table_(table),
      member_(member),
      size_(size),
      allowed_(allowed),
      proof_(newProof()),
      reach_(static_cast<size_t>(size)) {
  if (allowed) allowDescendantsOfParent();
  Entry& own = entry(member);
  own.proof.store(proof_, std::memory_order_relaxed);
  own.address.store(allowed ? addressForOthers(&proof_, sizeof(proof_)) : 0,
                    std::memory_order_relaxed);
  own.process.store(static_cast<int32_t>(getpid()), std::memory_order_release);
}

PeerMemory::Entry& PeerMemory::entry(int member) const {
  return *reinterpret_cast<Entry*>(table_ + static_cast<size_t>(member) * sizeof(Entry));
}

std::optional<bool> PeerMemory::reaches(int other) const {
  std::atomic<int8_t>& known = reach_[static_cast<size_t>(other)];
  const int8_t before = known.load(std::memory_order_relaxed);
  if (before != kUnknown) return before == kReached;
  const Entry& theirs = entry(other);
  const pid_t process = theirs.process.load(std::memory_order_acquire);
  if (process == 0) return std::nullopt;
  const uint64_t address = theirs.address.load(std::memory_order_relaxed);
  uint64_t found = 0;
  const bool reached = allowed_ && address != 0 &&
                       readFrom(process, address, &found, sizeof(found)) &&
                       found == theirs.proof.load(std::memory_order_relaxed);
  known.store(reached ? kReached : kUnreached, std::memory_order_relaxed);
  return reached;
}

bool PeerMemory::read(int other, uint64_t address, void* to, size_t bytes) const {
  const bool read =
      readFrom(entry(other).process.load(std::memory_order_relaxed), address, to, bytes);
  // What the caller asks next about the other member is asked after this.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return read;
}

void PeerMemory::publishVerdict() const {
  bool all = true;
  for (int other = 0; other < size_; ++other) {
    if (other != member_) all = all && reaches(other).value_or(false);
  }
  entry(member_).verdict.store(all ? 1 : 0, std::memory_order_release);
}

bool PeerMemory::allReachAll() const {
  for (int member = 0; member < size_; ++member) {
    if (entry(member).verdict.load(std::memory_order_acquire) == 0) return false;
  }
  return true;
}

uint64_t addressForOthers(const void* data, size_t bytes) {
  const HostReach reach{const_cast<void*>(data), ""};
  return reinterpret_cast<uint64_t>(confirmedByKernel(reach, bytes).memory);
}

}  // namespace topoopt
