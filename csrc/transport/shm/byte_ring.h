// A ring of bytes with one writer and one reader in shared memory.
//
// An end that is about to sleep sets a flag and checks once more. write() or read() then makes the
// other end wake it.

#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace topoopt {

// The shared state; each cache line has one main writer. All zero is an empty ring.
struct RingState {
  alignas(64) std::atomic<uint64_t> head;  // bytes written so far
  std::atomic<uint32_t> ended;             // by the writer
  alignas(64) std::atomic<uint64_t> tail;  // bytes read so far
  alignas(64) std::atomic<uint32_t> reader_sleeps;
  alignas(64) std::atomic<uint32_t> writer_sleeps;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class ByteRing {
 public:
  ByteRing() = default;
  // `capacity_bytes` is a power of two.
  ByteRing(RingState* state, std::byte* data, size_t capacity_bytes)
      : state_(state), data_(data), capacity_bytes_(capacity_bytes) {}

  // Moves as much as possible, at most `limit_bytes`; sets `wake` if the other end sleeps.
  size_t write(const iovec* parts, int part_count, size_t limit_bytes, bool& wake);
  size_t read(const iovec* parts, int part_count, size_t limit_bytes, bool& wake);

  bool readable() const;
  bool writable() const;  // enough room to resume writing
  bool full() const;
  void end();          // called by the writer
  bool ended() const;  // and everything was read
  // Returns whether the other end has written an impossible state.
  bool damaged() const;

  // Before sleeping. Returns false if sleep is unnecessary.
  bool readerSleeps();
  bool writerSleeps();
  void readerAwake();
  void writerAwake();

 private:
  size_t used() const;

  RingState* state_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_bytes_ = 0;
};

}  // namespace topoopt
