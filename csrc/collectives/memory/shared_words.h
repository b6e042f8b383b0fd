// Memory shared between processes: alignment, copying, and waiting for a word.

#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace topoopt {

// Aligns places inside a segment, which is mapped as a whole: pages of 64 KiB work as well.
inline constexpr size_t kSharedPage = 4096;
// Two cache lines, which x86 processors fetch in pairs; one line of some Arm processors.
inline constexpr size_t kSharedLine = 128;
// Polling time before a thread sleeps: longer than the usual skew of two members on separate cores,
// and negligible in an idle job.
inline constexpr std::chrono::microseconds kSharedLook{50};

inline size_t wholePages(size_t bytes) {
  return (bytes + kSharedPage - 1) / kSharedPage * kSharedPage;
}

// Reduces contention with the core that writes the word.
inline void pauseCore() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// How a thread writes data that another process reads next. Streaming stores bypass the caches.
// Otherwise a line still cached by the reader moves between caches twice, which is slower than
// memory on some processors (store_trial.h).
enum class Stores : uint32_t { kUnknown, kStreaming, kPlain };

// The stores of this process: streaming until a trial has found the faster ones.
inline std::atomic<Stores>& knownStores() {
  static std::atomic<Stores> known{Stores::kUnknown};
  return known;
}

inline constexpr size_t kLeastStreamedBytes = 4096;
#if defined(__SSE2__)
inline constexpr bool kHasStreamingStores = true;
#else
inline constexpr bool kHasStreamingStores = false;
#endif

// Copies to memory that another process reads next; streaming needs `to` aligned to 16 bytes.
inline void copyToOthers(void* to, const void* from, size_t bytes, Stores stores) {
#if defined(__SSE2__)
  const bool aligned = reinterpret_cast<uintptr_t>(to) % alignof(__m128i) == 0;
  if (stores != Stores::kPlain && aligned && bytes >= kLeastStreamedBytes) {
    constexpr size_t kStep = 4 * sizeof(__m128i);
    auto* out = static_cast<__m128i*>(to);
    const auto* in = static_cast<const __m128i*>(from);
    for (size_t left = bytes / kStep; left > 0; --left, out += 4, in += 4) {
      const __m128i a = _mm_loadu_si128(in);
      const __m128i b = _mm_loadu_si128(in + 1);
      const __m128i c = _mm_loadu_si128(in + 2);
      const __m128i d = _mm_loadu_si128(in + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    _mm_sfence();  // before the word that publishes the data
    to = out;
    from = in;
    bytes %= kStep;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

inline void copyToOthers(void* to, const void* from, size_t bytes) {
  copyToOthers(to, from, bytes, knownStores().load(std::memory_order_relaxed));
}

inline void wakeAll(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps until wakeAll(), unless `word` differs from `seen`; may return earlier. Returns false, at
// once, after the deadline.
inline bool sleepOn(std::atomic<uint32_t>& word, uint32_t seen,
                    std::optional<std::chrono::steady_clock::time_point> until) {
  timespec left{};
  if (until) {
    const auto remaining = std::chrono::duration_cast<std::chrono::nanoseconds>(
        *until - std::chrono::steady_clock::now());
    if (remaining.count() <= 0) return false;
    left.tv_sec = static_cast<time_t>(remaining.count() / 1'000'000'000);
    left.tv_nsec = static_cast<long>(remaining.count() % 1'000'000'000);
  }
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, until ? &left : nullptr, nullptr, 0);
  return true;
}

}  // namespace topoopt
