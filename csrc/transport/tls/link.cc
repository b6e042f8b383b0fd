#include "transport/tls/link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace topoopt {

TlsLink::TlsLink(const LinkSpec& spec, const Context& context)
    : TcpLink(spec, context),
      client_(context.rank < spec.peerRank()),
      remembers_(spec.cable != kNoCable) {
  session_.emplace(descriptor(), spec.tls_key, client_, remembers_);
}

void TlsLink::reopenBytes(const LinkSpec& spec) {
  TcpLink::reopenBytes(spec);
  ending_ = false;
  session_.emplace(descriptor(), spec.tls_key, client_, remembers_);
}

// An error here recurs at the next read or write.
void TlsLink::start() {
  TcpLink::start();
  session_->establish();
}

void TlsLink::onReady(uint32_t events) {
  constexpr uint32_t kEnd = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
  if ((events & (EPOLLIN | kEnd)) != 0) session_->becameReadable((events & kEnd) != 0);
  if ((events & EPOLLOUT) != 0) {
    const Io io = session_->flush();
    if (io == Io::kMore && std::exchange(ending_, false)) TcpLink::endWriting();
    if (io == Io::kBlocked || !session_->established()) events &= ~EPOLLOUT;
  }
  TcpLink::onReady(events);
}

// Adds the details of a loss, as the base class reports them.
Io TlsLink::checked(Io io) {
  if (io == Io::kBroken) {
    error_ = session_->error();
    loss_ = session_->systemError() == ECONNRESET ? Loss::kClosed : Loss::kBroken;
  }
  return io;
}

Io TlsLink::readBytes(const iovec* parts, int part_count, size_t& count) {
  if (!session_->established()) {
    const Io io = session_->establish();
    if (io != Io::kMore) return checked(io);
    becameWritable();
  }
  for (int i = 0; i < part_count; ++i) {
    auto* const place = static_cast<std::byte*>(parts[i].iov_base);
    for (size_t filled = 0; filled < parts[i].iov_len;) {
      const size_t before = count;
      const Io io = session_->read(place + filled, parts[i].iov_len - filled, count);
      if (io != Io::kMore) return checked(io);
      filled += count - before;
    }
  }
  return Io::kMore;
}

Io TlsLink::writeBytes(const iovec* parts, int part_count, size_t& count) {
  return checked(session_->write(parts, part_count, batch_bytes_, count));
}

// A partly received record may contain up to this part of the frame.
void TlsLink::expect(size_t bytes) {
  TcpLink::expect(bytes - std::min(bytes, TlsSession::kRecordBytes));
}

void TlsLink::endWriting() {
  session_->endWriting();
  ending_ = session_->pending();
  if (!ending_) TcpLink::endWriting();
}

void TlsLink::closeBytes() {
  TcpLink::closeBytes();
  session_.reset();
}

bool TlsLink::allDelivered() const { return !session_->pending() && TcpLink::allDelivered(); }

size_t TlsLink::unacknowledgedBytes() { return session_->unacknowledged(queuedBytes()); }

void TlsLink::endReading() {
  TcpLink::endReading();
  session_->becameReadable(true);
}

}  // namespace topoopt
