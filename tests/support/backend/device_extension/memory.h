// The memory of the test device "lag".
//
// It is mapped twice: tensors carry addresses at which no code may read or write, and what runs on
// the device translates them. So a host that touches device memory crashes. Tests may ask for
// memory of another kind: memory that the host reaches has the addresses of the other mapping, and
// the device says that it is page-locked; of memory that is not there it says so, too.

#pragma once

#include <c10/core/Allocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace lag {

constexpr size_t kArenaBytes = size_t{1} << 30;  // pages that are never used cost nothing

enum class Kind { kDevice, kHost, kNotThere };
inline std::atomic<Kind> kind{Kind::kDevice};

class Arena {
 public:
  static Arena& instance() {
    static auto* arena = new Arena;  // outlives all tensors
    return *arena;
  }

  void* allocate(size_t bytes) {
    bytes = rounded(bytes);
    std::lock_guard lock(mutex_);
    const bool reachable = kind == Kind::kHost;
    auto& free = free_[{reachable, bytes}];
    // As stream-ordered allocators do: what was freed last is used again at once.
    if (!free.empty()) {
      void* address = free.back();
      free.pop_back();
      return address;
    }
    if (next_ + bytes > kArenaBytes) throw std::runtime_error("lag: out of memory");
    void* address = (reachable ? usable_ : forbidden_) + next_;
    next_ += bytes;
    return address;
  }

  void release(void* address, size_t bytes) {
    std::lock_guard lock(mutex_);
    free_[{!contains(address), rounded(bytes)}].push_back(address);
  }

  // What the device says of its memory.
  bool saysPinned(const void* address) const {
    const auto* at = static_cast<const char*>(address);
    if (contains(address)) return kind == Kind::kNotThere;
    return at >= usable_ && at < usable_ + kArenaBytes;
  }

  bool contains(const void* address) const {
    const auto* at = static_cast<const char*>(address);
    return at >= forbidden_ && at < forbidden_ + kArenaBytes;
  }

  void* usable(const void* address) const {
    return contains(address) ? usable_ + (static_cast<const char*>(address) - forbidden_)
                             : const_cast<void*>(address);
  }

 private:
  Arena() {
    const int fd = memfd_create("lag", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, kArenaBytes) != 0) throw std::runtime_error("lag: memfd");
    const auto map = [fd](int protection) {
      void* address = mmap(nullptr, kArenaBytes, protection, MAP_SHARED, fd, 0);
      if (address == MAP_FAILED) throw std::runtime_error("lag: mmap");
      return static_cast<char*>(address);
    };
    forbidden_ = map(PROT_NONE);
    usable_ = map(PROT_READ | PROT_WRITE);
    close(fd);
  }

  static size_t rounded(size_t bytes) { return (bytes / 512 + 1) * 512; }

  std::mutex mutex_;
  char* forbidden_;
  char* usable_;
  size_t next_ = 0;
  std::map<std::pair<bool, size_t>, std::vector<void*>> free_;
};

// The context of a DataPtr: an address and its size.
struct Block {
  void* address;
  size_t bytes;
};

struct DeviceAllocator final : c10::Allocator {
  explicit DeviceAllocator(c10::DeviceIndex (*current)()) : current_(current) {}

  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{Arena::instance().allocate(bytes), bytes};
    return {block->address, block, &release, c10::Device(c10::kPrivateUse1, current_())};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(Arena::instance().usable(to), Arena::instance().usable(from), bytes);
  }

 private:
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    Arena::instance().release(block->address, block->bytes);
    delete block;
  }

  c10::DeviceIndex (*const current_)();
};

// Pinned memory of the host: what the device may copy from and to without the host waiting.
class PinnedAllocator final : public c10::Allocator {
 public:
  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{std::malloc(bytes + 1), bytes};
    std::lock_guard lock(mutex_);
    blocks_[block->address] = bytes;
    return {block->address, block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  bool contains(const void* address) {
    std::lock_guard lock(mutex_);
    auto next = blocks_.upper_bound(const_cast<void*>(address));
    if (next == blocks_.begin()) return false;
    const auto& [start, bytes] = *std::prev(next);
    return static_cast<const char*>(address) <= static_cast<char*>(start) + bytes;
  }

  size_t bytes() {
    std::lock_guard lock(mutex_);
    size_t sum = 0;
    for (const auto& [start, bytes] : blocks_) sum += bytes;
    return sum;
  }

 private:
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    {
      std::lock_guard lock(instance().mutex_);
      instance().blocks_.erase(block->address);
    }
    std::memset(block->address, 0xee, block->bytes);  // for those who still use it
    std::free(block->address);
    delete block;
  }

  std::mutex mutex_;
  std::map<void*, size_t> blocks_;
};

}  // namespace lag
