#include "transport/tcp/link.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace topoopt {
namespace {

constexpr uint32_t kReading = EPOLLIN;
constexpr uint32_t kWriting = EPOLLOUT | EPOLLRDHUP | EPOLLET;
constexpr size_t kUnknownBytes = SIZE_MAX;  // the system has no count
// Unanswered probes after which the other end is lost.
constexpr unsigned kMostProbes = 5;

size_t sizeOf(const iovec* parts, int part_count) {
  size_t bytes = 0;
  for (int i = 0; i < part_count; ++i) bytes += parts[i].iov_len;
  return bytes;
}

// Makes the kernel forget the connection when it is closed.
void leaveNothingOf(int socket) {
  const linger at_once{1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

}  // namespace

TcpLink::TcpLink(const LinkSpec& spec, const Context& context)
    : Link(spec, context,
           {.acknowledgements = this,
            .lent_memory = this,
            .replaceable = this,
            .send_rates = this,
            .wake_ups = this}) {
  take(spec);
}

void TcpLink::take(const LinkSpec& spec) {
  socket_.reset(spec.fd);
  wake_bytes_.reset(1);
  end_seen_ = false;
  looked_ = Reactor::Clock::now();
  batch_bytes_ = kBatchBytes;
  most_payload_ = kNeighbourPayloadBytes;
  fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  // The kernel's limit of unsent bytes, which the opener of the socket has derived from the link's
  // rate. The kernel checks it only before a write, so writes must not be longer.
  int unsent_bytes = 0;
  socklen_t size = sizeof unsent_bytes;
  if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, &size) == 0 &&
      unsent_bytes > 0) {
    const auto unsent = static_cast<size_t>(unsent_bytes);
    batch_bytes_ = unsent >= kFastBatchBytes ? kFastBatchBytes : std::min(kBatchBytes, unsent);
    // Frames delay each other by at most half of the kernel's limit.
    most_payload_ = static_cast<uint32_t>(
        std::clamp<size_t>(unsent / 2, kNeighbourPayloadBytes, kMaxPayloadBytes));
  }
  disconnected_ = false;
  zero_copy_.begin(socket_.get(), fast() ? spec.zero_copy : ZeroCopy::kOff, spec.memory_wait);
}

// Edge-triggered: registered once, notified on changes.
void TcpLink::start() {
  watches_reading_ = true;
  reactor().watch(socket_.get(), kReading | kWriting, this);
}

// Data that is already there counts as a change.
void TcpLink::watchReading(bool watch) {
  if (std::exchange(watches_reading_, watch) == watch) return;
  reactor().rewatch(socket_.get(), watch ? kReading | kWriting : kWriting);
}

void TcpLink::expect(size_t bytes) {
  wake_bytes_.expect(socket_.get(), bytes, fast() ? WakeBytes::kMostFast : WakeBytes::kMost);
}

// Ends the connection even if another process has a copy of the descriptor.
void TcpLink::closeBytes() {
  reactor().unwatch(socket_.get());
  if (zero_copy_.lends() && (leaves_nothing_ || !zero_copy_.awaitAll(socket_.get()))) {
    disconnect();
  }
  shutdown(socket_.get(), SHUT_RDWR);
  if (leaves_nothing_) leaveNothingOf(socket_.get());
  socket_.reset();
}

// The kernel returns lent memory only after it has dropped the connection.
bool TcpLink::holdBytes() {
  if (zero_copy_.lends()) return false;
  reactor().unwatch(socket_.get());
  endReading();
  leaveNothingOf(socket_.get());
  return true;
}

void TcpLink::reopenBytes(const LinkSpec& spec) { take(spec); }

size_t TcpLink::queuedBytes() const {
  int bytes = 0;
  return ioctl(socket_.get(), SIOCOUTQ, &bytes) == 0 ? static_cast<size_t>(bytes) : kUnknownBytes;
}

// A filter that drops all packets stops TCP from acknowledging unread data.
void TcpLink::endReading() {
  sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &nothing};
  if (setsockopt(socket_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0) {
    shutdown(socket_.get(), SHUT_RD);
  }
}

Acknowledged TcpLink::acknowledged() {
  const auto now = Reactor::Clock::now();
  const auto since = now - std::exchange(looked_, now);
  tcp_info info{};
  socklen_t size = sizeof info;
  if (queuedBytes() == 0 || getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
    return Acknowledged::kAdvances;
  }
  const uint64_t before = std::exchange(acknowledged_bytes_, info.tcpi_bytes_acked);
  if (info.tcpi_unacked == 0) {
    // The neighbour has no room, so the system probes ever less often.
    return info.tcpi_probes < kMostProbes ? Acknowledged::kAdvances : Acknowledged::kNothing;
  }
  if (std::chrono::milliseconds(info.tcpi_last_ack_recv) >= since) return Acknowledged::kNothing;
  const bool stands = info.tcpi_retransmits > 0 && info.tcpi_bytes_acked == before;
  return stands ? Acknowledged::kStands : Acknowledged::kAdvances;
}

void TcpLink::limitRate(std::optional<uint64_t> bytes_per_s) {
  const uint64_t rate = bytes_per_s.value_or(UINT64_MAX);
  setsockopt(socket_.get(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

std::optional<SendProgressCounters> TcpLink::sendProgress() {
  auto progress = sendProgressOf(socket_.get());
  // The system has little unsent data by design; more is queued here.
  if (progress && wantsToWrite()) progress->idle_lately = false;
  return progress;
}

void TcpLink::settleWriting() {
  if (!zero_copy_.lends() || disconnected_) return;
  if (!zero_copy_.awaitAll(socket_.get())) disconnect();
  gaveBack();
}

// Drops the kernel's unsent data and its lent memory, except packets that an interface is sending.
// The link is lost.
void TcpLink::disconnect() {
  const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
  connect(socket_.get(), &nobody, sizeof nobody);
  zero_copy_.awaitAll(socket_.get());
  disconnected_ = true;
}

void TcpLink::addTo(LinkCounters& counters) const {
  counters.zero_copy_bytes = zero_copy_.uncopiedBytes();
  counters.copied_bytes = zero_copy_.copiedBytes();
}

void TcpLink::endWriting() { shutdown(socket_.get(), SHUT_WR); }

bool TcpLink::allDelivered() const {
  const size_t queued = queuedBytes();
  return queued == 0 || queued == kUnknownBytes;
}

void TcpLink::acknowledgeAtOnce() {
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

void TcpLink::onReady(uint32_t events) {
  // Zero-copy notices arrive as errors. A real error also ends the connection, which is reported
  // separately.
  if ((events & EPOLLERR) && zero_copy_.noticesCome()) {
    if (zero_copy_.takeNotices(socket_.get())) gaveBack();
    if (!(events & (EPOLLRDHUP | EPOLLHUP))) events &= ~static_cast<uint32_t>(EPOLLERR);
  }
  if (events & EPOLLOUT) becameWritable();
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) end_seen_ = true;
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) becameReadable();
}

Io TcpLink::readBytes(const iovec* parts, int part_count, size_t& count) {
  if (disconnected_) {
    error_ = "the neighbour did not take a payload that was given up";
    loss_ = Loss::kBroken;
    return Io::kBroken;
  }
  for (;;) {
    const ssize_t got = readv(socket_.get(), parts, part_count);
    if (got > 0) {
      count += static_cast<size_t>(got);
      // The socket is then empty, and new data is reported as a change.
      const bool all = count < sizeOf(parts, part_count) && !end_seen_;
      return all ? Io::kBlocked : Io::kMore;
    }
    if (got == 0) return Io::kEnded;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::kBlocked;
    if (errno == EINTR) continue;
    error_ = errorText(errno);
    loss_ = errno == ECONNRESET ? Loss::kClosed : Loss::kBroken;
    return Io::kBroken;
  }
}

// One system call: copied parts, or one zero-copy payload.
ssize_t TcpLink::sendOnce(iovec* parts, size_t part_count, uint64_t offset, int flags) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = part_count;
  if (part_count == 1 && zero_copy_.takes(parts[0].iov_len)) {
    const ssize_t put = sendmsg(socket_.get(), &message, flags | MSG_ZEROCOPY);
    if (put > 0) zero_copy_.sent(offset, static_cast<size_t>(put));
    // The kernel's notice limit is reached, or it cannot pin the memory, such as a device's.
    if (put >= 0 || (errno != ENOBUFS && errno != EFAULT)) return put;
    zero_copy_.refused(parts[0].iov_len);
  }
  return sendmsg(socket_.get(), &message, flags);
}

// Headers are always copied, because their memory moves with the frame.
Io TcpLink::writeBytes(const iovec* parts, int part_count, size_t& count) {
  for (int next = 0; next < part_count && count < batch_bytes_;) {
    iovec taken[FrameQueue::kMaxParts];
    size_t taken_count = 0;
    size_t bytes = 0;
    bool alone = false;
    while (next < part_count && count + bytes < batch_bytes_ && !alone) {
      const size_t size = std::min(parts[next].iov_len, batch_bytes_ - count - bytes);
      alone = zero_copy_.takes(size);
      if (alone && taken_count > 0) break;
      taken[taken_count++] = {parts[next++].iov_base, size};
      bytes += size;
    }
    const bool more = next < part_count && count + bytes < batch_bytes_;
    const int flags = MSG_NOSIGNAL | (more ? MSG_MORE : 0);
    ssize_t put = -1;
    do {
      put = sendOnce(taken, taken_count, writtenBytes() + count, flags);
    } while (put < 0 && errno == EINTR);
    if (put < 0) return afterError();
    count += static_cast<size_t>(put);
    // The kernel may be unable to pin part of a payload: retry the rest alone.
    if (static_cast<size_t>(put) < bytes) return alone ? Io::kMore : Io::kBlocked;
  }
  return Io::kMore;
}

Io TcpLink::afterError() {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::kBlocked;
  if (errno == EPIPE || errno == ECONNRESET) return Io::kEnded;
  error_ = errorText(errno);
  loss_ = Loss::kBroken;
  return Io::kBroken;
}

}  // namespace topoopt
