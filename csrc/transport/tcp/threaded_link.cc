#include "transport/tcp/threaded_link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "transport/carrier_watch.h"
#include "transport/near_processors.h"

namespace topoopt {

ThreadedLink::ThreadedLink(const LinkSpec& spec, const Context& context)
    : TcpLink(spec, context),
      reader_(ByteThread::Way::kRead, processorsNear(interfaceOf(spec.fd))),
      writer_(ByteThread::Way::kWrite, processorsNear(interfaceOf(spec.fd))) {}

void ThreadedLink::start() {
  TcpLink::start();
  reader_.start(reactor(), [this] { becameReadable(); });
  writer_.start(reactor(), [this] { becameWritable(); });
}

void ThreadedLink::onReady(uint32_t events) {
  // The thread of a running batch waits for room itself.
  if (writer_.running()) events &= ~static_cast<uint32_t>(EPOLLOUT);
  TcpLink::onReady(events);
}

Io ThreadedLink::outcome(const ByteThread::Moved& moved, size_t& count) {
  count += moved.bytes;
  if (moved.io == Io::kBroken) {
    error_ = errorText(moved.error);
    loss_ = moved.error == ECONNRESET ? Loss::kClosed : Loss::kBroken;
  }
  return moved.io;
}

Io ThreadedLink::readBytes(const iovec* parts, int part_count, size_t& count) {
  if (reader_.running()) return Io::kBlocked;
  if (const auto moved = reader_.take()) {
    const Io io = outcome(*moved, count);
    if (io == Io::kBlocked) watchReading(true);
    return io;
  }
  const bool long_payload = part_count == 2 && parts[0].iov_len >= kLeastBytes;
  if (!long_payload || reads_here_ || !fast()) {
    const Io io = TcpLink::readBytes(parts, part_count, count);
    if (io == Io::kBlocked) watchReading(true);
    return io;
  }
  watchReading(false);  // to avoid needless wake-ups of the reactor
  forgetWakeBytes();
  ByteThread::Batch batch{.fd = descriptor(),
                          .part_count = part_count,
                          .wanted = parts[0].iov_len,
                          .most_per_call = SIZE_MAX};
  std::copy_n(parts, part_count, batch.parts.begin());
  reader_.begin(batch);
  return Io::kBlocked;
}

Io ThreadedLink::writeBytes(const iovec* parts, int part_count, size_t& count) {
  if (writer_.running()) return Io::kBlocked;
  if (const auto moved = writer_.take()) return outcome(*moved, count);
  size_t bytes = 0;
  for (int i = 0; i < part_count; ++i) bytes += parts[i].iov_len;
  if (bytes < kLeastBytes || !fast() || sendsWithoutCopy()) {
    return TcpLink::writeBytes(parts, part_count, count);
  }
  ByteThread::Batch batch{
      .fd = descriptor(), .part_count = part_count, .wanted = bytes, .most_per_call = batch_bytes_};
  std::copy_n(parts, part_count, batch.parts.begin());
  writer_.begin(batch);
  return Io::kBlocked;
}

// The reading thread sets its own wake-up threshold.
void ThreadedLink::expect(size_t bytes) {
  if (reader_.running()) return;
  TcpLink::expect(bytes);
}

// Any part of a running batch may have been written.
size_t ThreadedLink::begunBytes() const {
  return writer_.running() ? writer_.bytes() : writer_.moved();
}

// Bytes not counted as written yet are the last ones in the socket.
size_t ThreadedLink::unacknowledgedBytes() {
  const size_t uncounted = writer_.moved();
  const size_t queued = queuedBytes();
  return queued - std::min(queued, uncounted);
}

void ThreadedLink::settleReading(const std::byte* begin, const std::byte* end) {
  if (!reader_.running()) return;
  if (reader_.place() < begin || reader_.place() >= end) return;
  reader_.settle();
  becameReadable();
}

void ThreadedLink::settleWriting() {
  if (writer_.running()) {
    writer_.settle();
    becameWritable();
  }
  TcpLink::settleWriting();
}

void ThreadedLink::endReading() {
  reads_here_ = true;
  reader_.settle();
  TcpLink::endReading();
}

void ThreadedLink::closeBytes() {
  reader_.stop(reactor());
  writer_.stop(reactor());
  TcpLink::closeBytes();
}

bool ThreadedLink::holdBytes() {
  reader_.stop(reactor());
  writer_.stop(reactor());
  return TcpLink::holdBytes();
}

void ThreadedLink::reopenBytes(const LinkSpec& spec) {
  reads_here_ = false;
  TcpLink::reopenBytes(spec);
}

}  // namespace topoopt
