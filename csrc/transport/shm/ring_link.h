// A link over two byte rings, one each way, in memory that both ends see. While both are awake
// nothing but memory moves; a bell wakes an end that sleeps.

#pragma once

#include "transport/links/link.h"
#include "transport/shm/byte_ring.h"

namespace topoopt {

class RingLink : public Link, private Reactor::Poller {
 protected:
  using Link::Link;

  // Once the rings are there; until then nothing moves.
  void attach(const ByteRing& out, const ByteRing& in);
  // The other end is gone; what it wrote before can still be read.
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
  bool asleep_ = false;  // has notified the other end
};

}  // namespace topoopt
