// A ring of bytes with one writer and one reader, in memory that both can see.
//
// Either end may sleep: it says so, looks once more, and is then woken by the other, which finds
// out from write() or read() that it must.

#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace topoopt {

// What the two ends share; each line is written by one of them most of the time. All zero is an
// empty ring.
struct RingState {
  alignas(64) std::atomic<uint64_t> head;  // bytes written so far
  std::atomic<uint32_t> ended;             // the writer will write no more
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

  // Moves as much as it can, at most `limit_bytes`; `wake` is set if the other end sleeps.
  size_t write(const iovec* parts, int part_count, size_t limit_bytes, bool& wake);
  size_t read(const iovec* parts, int part_count, size_t limit_bytes, bool& wake);

  bool readable() const;
  bool writable() const;  // worth going on after it was full
  bool full() const;
  void end();          // the writer's last word
  bool ended() const;  // and all that was written has been read
  // What the other end did to the state cannot be true.
  bool damaged() const;

  // Before sleeping. False if there is no need to.
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
