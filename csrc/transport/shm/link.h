// A link between two ranks of one server, in shared memory.
//
// It starts on a connected AF_UNIX stream socket. The lower rank creates the memory and passes it
// once. Afterwards the socket carries only wake-ups, and its end means that the other rank is gone.
// Nothing has a name in the file system, so nothing is left behind.

#pragma once

#include "transport/descriptor.h"
#include "transport/shm/ring_link.h"

namespace topoopt {

class ShmLink final : public RingLink {
 public:
  // Throws std::system_error without shared memory, std::invalid_argument for a simplex link.
  ShmLink(const LinkSpec& spec, const Context& context);
  ~ShmLink() override;

  void start() override;
  void onReady(uint32_t events) override;

 private:
  void ringBell() override;
  void closeBell() override {
    reactor().unwatch(socket_.get());
    socket_.reset();
  }
  void createSegment();
  bool receiveSegment();
  void map(int fd);
  void attachSegment();

  Descriptor socket_;
  const bool creates_;
  void* segment_ = nullptr;
};

}  // namespace topoopt
