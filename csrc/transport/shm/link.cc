#include "transport/shm/link.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "common/errors.h"

namespace topoopt {
namespace {

constexpr size_t kRingBytes = 1 << 20;
constexpr size_t kStateBytes = 4096;  // one page for the states of both rings
constexpr size_t kSegmentBytes = kStateBytes + 2 * kRingBytes;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr char kBell = 'b';
static_assert(2 * sizeof(RingState) <= kStateBytes);

ByteRing ringOf(void* segment, size_t index) {
  auto* bytes = static_cast<std::byte*>(segment);
  return {static_cast<RingState*>(segment) + index, bytes + kStateBytes + index * kRingBytes,
          kRingBytes};
}

}  // namespace

ShmLink::ShmLink(const LinkSpec& spec, const Context& context)
    : RingLink(spec, context), socket_(spec.fd), creates_(context.rank < spec.peerRank()) {
  if (!spec.sends) throw std::invalid_argument("a link in shared memory goes both ways");
  fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  if (creates_) createSegment();
}

ShmLink::~ShmLink() {
  close();
  if (segment_ != nullptr) munmap(segment_, kSegmentBytes);
}

void ShmLink::createSegment() {
  const Descriptor memory(memfd_create("topoopt-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) throwErrno("memfd_create");
  if (ftruncate(memory.get(), kSegmentBytes) != 0) throwErrno("ftruncate");
  // Neither end can then truncate the other's memory.
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) throwErrno("F_ADD_SEALS");
  map(memory.get());
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{const_cast<char*>(&kBell), 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = memory.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  // If the other end has ended, reading reports it.
  if (sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET) {
    throwErrno("passing shared memory");
  }
}

void ShmLink::map(int fd) {
  void* memory = mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throwErrno("mmap");
  segment_ = memory;
}

void ShmLink::attachSegment() {
  attach(ringOf(segment_, creates_ ? 0 : 1), ringOf(segment_, creates_ ? 1 : 0));
}

void ShmLink::start() {
  reactor().watch(socket_.get(), EPOLLIN | EPOLLRDHUP | EPOLLET, this);
  if (creates_) attachSegment();
}

// Returns false if it has not arrived, or never will.
bool ShmLink::receiveSegment() {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  char byte = 0;
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (got <= 0) {
    peerGone();
    return false;
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  int fd = -1;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  }
  const Descriptor memory(fd);
  struct stat status{};
  if (!memory || fstat(fd, &status) != 0 || status.st_size != static_cast<off_t>(kSegmentBytes) ||
      (fcntl(fd, F_GET_SEALS) & kSeals) != kSeals) {
    lose(Loss::kBroken, "received something that is not the memory to share");
    return false;
  }
  try {
    map(fd);
  } catch (const std::system_error& error) {
    lose(Loss::kBroken, error.what());
    return false;
  }
  attachSegment();
  return true;
}

void ShmLink::onReady(uint32_t) {
  if (!attached() && !receiveSegment()) return;
  char bells[64];
  for (;;) {
    const ssize_t got = recv(socket_.get(), bells, sizeof bells, MSG_DONTWAIT);
    if (got > 0) continue;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    return peerGone();
  }
}

// If the socket is full, the other end has enough notifications.
void ShmLink::ringBell() {
  [[maybe_unused]] const ssize_t sent =
      ::send(socket_.get(), &kBell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace topoopt
