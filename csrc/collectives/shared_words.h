// Memory that processes share: its units, and how their threads wait for a word in it.

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
#include <optional>

namespace topoopt {

inline constexpr size_t kSharedPage = 4096;
inline constexpr size_t kSharedLine = 128;  // two cache lines: processors fetch them in pairs
// For which a thread looks before it sleeps: longer than two members on cores of their own are
// usually apart, and nothing in an idle job.
inline constexpr std::chrono::microseconds kSharedLook{50};

inline size_t wholePages(size_t bytes) {
  return (bytes + kSharedPage - 1) / kSharedPage * kSharedPage;
}

// Looking at a word must not keep another core from writing it.
inline void pauseCore() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

inline void wakeAll(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps until wakeAll(), unless `word` is not `seen` any more; may return earlier. False, at once,
// if the time has come.
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
