// A link over two byte rings in shared memory, one per direction. While both ends are awake, only
// memory moves; a notification wakes a sleeping end.

#pragma once

#include "transport/links/link.h"
#include "transport/shm/byte_ring.h"

namespace topoopt {

class RingLink : public Link, private Reactor::Poller {
 protected:
  using Link::Link;

  // Sets the rings; nothing moves before.
  void attach(const ByteRing& out, const ByteRing& in);
  // The other end is gone; its earlier data can still be read.
  void peerGone();
  bool attached() const { return attached_; }

  virtual void ringBell() = 0;
  virtual void closeBell() = 0;

 private:
  Io readBytes(const iovec* parts, int part_count, size_t& count) final;
  Io writeBytes(const iovec* parts, int part_count, size_t& count) final;
  void endWriting() final;
  void closeBytes() final;
  void poll() final;
  bool prepareToSleep() final;

  ByteRing out_;
  ByteRing in_;
  bool attached_ = false;
  bool peer_gone_ = false;
  bool end_when_attached_ = false;
  bool asleep_ = false;  // and has notified the other end
};

}  // namespace topoopt
