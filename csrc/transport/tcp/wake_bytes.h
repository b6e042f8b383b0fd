// How many bytes a socket gathers before it wakes its reader (SO_RCVLOWAT).
//
// A slow link delivers a packet or two at a time. Without this, each of them would wake the reader,
// which costs more than to receive it.

#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace topoopt {

class WakeBytes {
 public:
  // Most bytes to wait for: the kernel must hold them, and the sender keep sending.
  static constexpr size_t kMost = 64 << 10;
  static constexpr size_t kMostFast = 256 << 10;

  // The reader needs `bytes` more. If that many are there already, the kernel reports it at once.
  void expect(int socket, size_t bytes, size_t most) {
    const int wanted = bytes < kLeast ? 1 : static_cast<int>(std::min(bytes, most));
    if (wanted == set_) return;
    if (setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) set_ = wanted;
  }
  // The socket is another one, or its limit was set elsewhere.
  void reset(int set = kUnknown) { set_ = set; }

 private:
  // Below this, setting a limit costs more than the wake-ups that it saves.
  static constexpr size_t kLeast = 8 << 10;
  static constexpr int kUnknown = 0;

  int set_ = 1;  // of a new socket
};

}  // namespace topoopt
