// The number of bytes that a socket gathers before it wakes its reader (SO_RCVLOWAT).
//
// A slow link delivers one or two packets at a time. A wake-up of the reader for each would cost
// more than receiving it.

#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace topoopt {

class WakeBytes {
 public:
  // Upper limit: the kernel must buffer the bytes while the sender continues.
  static constexpr size_t kMost = 64 << 10;
  static constexpr size_t kMostFast = 256 << 10;

  // The reader needs `bytes` more. The kernel reports them at once if they have arrived.
  void expect(int socket, size_t bytes, size_t most) {
    const int wanted = bytes < kLeast ? 1 : static_cast<int>(std::min(bytes, most));
    if (wanted == set_) return;
    if (setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted) == 0) set_ = wanted;
  }
  // The socket was replaced, or another object set its limit.
  void reset(int set = kUnknown) { set_ = set; }

 private:
  // Below this, setting a limit costs more than the saved wake-ups.
  static constexpr size_t kLeast = 8 << 10;
  static constexpr int kUnknown = 0;

  int set_ = 1;  // default of a new socket
};

}  // namespace topoopt
