#include "transport/shm/ring_link.h"

#include <utility>

namespace topoopt {
namespace {

// Step size: the other end can process a step while this one copies the next.
constexpr size_t kStepBytes = 64 << 10;

}  // namespace

void RingLink::attach(const ByteRing& out, const ByteRing& in) {
  out_ = out;
  in_ = in;
  attached_ = true;
  reactor().addPoller(this);
  becameReadable();
  becameWritable();
  if (end_when_attached_) endWriting();
}

void RingLink::peerGone() {
  peer_gone_ = true;
  becameReadable();
  becameWritable();
}

Io RingLink::readBytes(const iovec* parts, int part_count, size_t& count) {
  if (attached_) {
    bool wake = false;
    count += in_.read(parts, part_count, kStepBytes, wake);
    if (wake) ringBell();
    if (in_.damaged()) {
      error_ = "its shared memory is damaged";
      return Io::kBroken;
    }
    if (in_.readable()) return Io::kMore;
    if (in_.ended()) return Io::kEnded;
  }
  return peer_gone_ ? Io::kEnded : Io::kBlocked;
}

Io RingLink::writeBytes(const iovec* parts, int part_count, size_t& count) {
  if (peer_gone_) return Io::kEnded;
  if (!attached_) return Io::kBlocked;
  bool wake = false;
  count += out_.write(parts, part_count, kStepBytes, wake);
  if (wake) ringBell();
  if (out_.damaged()) {
    error_ = "its shared memory is damaged";
    return Io::kBroken;
  }
  return out_.full() ? Io::kBlocked : Io::kMore;
}

void RingLink::endWriting() {
  end_when_attached_ = !attached_;
  if (!attached_) return;
  out_.end();
  ringBell();
}

void RingLink::closeBytes() {
  reactor().removePoller(this);
  closeBell();
}

void RingLink::poll() {
  if (std::exchange(asleep_, false)) {
    in_.readerAwake();
    out_.writerAwake();
  }
  if (in_.readable() || in_.ended()) becameReadable();
  if (wantsToWrite() && out_.writable()) becameWritable();
}

bool RingLink::prepareToSleep() {
  asleep_ = true;
  const bool nothing_to_read = in_.readerSleeps();
  const bool no_room = !wantsToWrite() || out_.writerSleeps();
  return nothing_to_read && no_room;
}

}  // namespace topoopt
