// Shared by the ranks of a harness: handles, barriers, and limits of waits.

#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include "nccl_net_api.h"

namespace topoopt::nccl {

using Clock = std::chrono::steady_clock;

constexpr int kMostRanks = 64;
constexpr std::chrono::seconds kLimit{100};

struct Exchange {
  struct Slot {
    std::atomic<int> there;
    std::array<char, kHandleBytes> handle;
  };
  std::array<std::array<std::array<Slot, kMostRanks>, kMostRanks>, 2> of;  // round, at, for
  std::array<std::atomic<int>, 8> arrived;
};

inline Exchange& openExchange(const char* path) {
  const int fd = open(path, O_RDWR | O_CREAT, 0600);
  must(fd >= 0 && ftruncate(fd, sizeof(Exchange)) == 0, std::string(path) + " cannot be opened");
  void* memory = mmap(nullptr, sizeof(Exchange), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  must(memory != MAP_FAILED, "mmap");
  return *static_cast<Exchange*>(memory);
}

class Until {  // what is polled as the proxy does, with a limit
 public:
  explicit Until(const char* what) : what_(what) {}
  void look() {
    must(Clock::now() - began_ < kLimit, std::string(what_) + " takes too long");
    usleep(50);
  }

 private:
  const char* what_;
  const Clock::time_point began_ = Clock::now();
};

inline void meet(Exchange& exchange, size_t number, int ranks) {
  Until until("a barrier");
  for (++exchange.arrived[number]; exchange.arrived[number] < ranks;) until.look();
}

// Ends one of the plugin's TCP connections, as if its other end had: a cable that is lost.
inline void cutCable() {
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_in other{};
    socklen_t bytes = sizeof other;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&other), &bytes) != 0) continue;
    if (other.sin_family == AF_INET && shutdown(fd, SHUT_RDWR) == 0) return;
  }
  throw std::runtime_error("the plugin has no TCP connection");
}

}  // namespace topoopt::nccl
