// A file descriptor that closes itself, also in forked processes: otherwise data loading workers
// would keep the connections of a dead rank open.

#pragma once

#include <utility>

namespace topoopt {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) { remember(fd); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    closeNow();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~Descriptor() { closeNow(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1) {
    closeNow();
    fd_ = fd;
    remember(fd);
  }

 private:
  static void remember(int fd);
  void closeNow();

  int fd_ = -1;
};

}  // namespace topoopt
