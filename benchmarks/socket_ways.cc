// One TCP connection moved in several ways, for socket_ways.py, which says what they are.
//
//     socket_ways send WAY ADDRESS PORT SECONDS
//     socket_ways receive WAY ADDRESS PORT
//     socket_ways zero-copy-receive INTERFACE
//
// The first two print bytes, seconds, processor seconds and, of a sender, how many sends the kernel
// has said something about and how many of those it copied. The last prints what the kernel
// answers.

#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr size_t kMemoryBytes = 64 << 20;  // both ends go round and round through so much
constexpr size_t kPieceBytes = 512 << 10;  // of a send, as a fast link's
constexpr size_t kPieces = kMemoryBytes / kPieceBytes;
constexpr size_t kReadBytes = 1 << 20;  // of a receive, as a fast link's frames
constexpr int kWakeBytes = 256 << 10;   // as a fast link's
constexpr int kUnsentBytes = 2 << 20;   // the same
constexpr unsigned kPoolBuffers = 32;   // of a multishot receive, of kPoolBytes each
constexpr size_t kPoolBytes = 256 << 10;

[[noreturn]] void fail(const char* what, int error) {
  std::fprintf(stderr, "socket_ways: %s: %s\n", what, std::strerror(error));
  std::exit(1);
}

int checked(int result, const char* what) {
  if (result < 0) fail(what, errno);
  return result;
}

double processorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  double processor() const { return processorSeconds() - processor_; }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const double processor_ = processorSeconds();
};

std::byte* pages(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) fail("mmap", errno);
  std::memset(memory, 1, bytes);
  return static_cast<std::byte*>(memory);
}

// ---- io_uring, by its system calls -----------------------------------------------------------

class Ring {
 public:
  explicit Ring(unsigned entries, unsigned flags = 0) {
    io_uring_params params{};
    params.flags = flags;
    fd_ =
        checked(static_cast<int>(syscall(SYS_io_uring_setup, entries, &params)), "io_uring_setup");
    const size_t submissions = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    const size_t completions = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    std::byte* const rings = map(std::max(submissions, completions), IORING_OFF_SQ_RING);
    sqes_ = reinterpret_cast<io_uring_sqe*>(
        map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    const auto at = [rings](unsigned offset) {
      return reinterpret_cast<unsigned*>(rings + offset);
    };
    sq_tail_ = at(params.sq_off.tail);
    sq_mask_ = *at(params.sq_off.ring_mask);
    sq_array_ = at(params.sq_off.array);
    cq_head_ = at(params.cq_off.head);
    cq_tail_ = at(params.cq_off.tail);
    cq_mask_ = *at(params.cq_off.ring_mask);
    cqes_ = reinterpret_cast<io_uring_cqe*>(rings + params.cq_off.cqes);
  }

  int descriptor() const { return fd_; }

  io_uring_sqe& next(uint8_t operation, int fd, const void* memory, size_t bytes) {
    const unsigned tail = *sq_tail_;
    io_uring_sqe& sqe = sqes_[tail & sq_mask_];
    sqe = {};
    sqe.opcode = operation;
    sqe.fd = fd;
    sqe.addr = reinterpret_cast<uintptr_t>(memory);
    sqe.len = static_cast<unsigned>(bytes);
    sq_array_[tail & sq_mask_] = tail & sq_mask_;
    std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
    ++unsubmitted_;
    return sqe;
  }

  // Submits what next() has returned and waits until something is complete.
  io_uring_cqe wait() {
    while (*cq_head_ == std::atomic_ref(*cq_tail_).load(std::memory_order_acquire)) enter(1);
    const unsigned head = *cq_head_;
    const io_uring_cqe cqe = cqes_[head & cq_mask_];
    std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
    return cqe;
  }

 private:
  std::byte* map(size_t bytes, off_t offset) const {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, offset);
    if (memory == MAP_FAILED) fail("mmap of a ring", errno);
    return static_cast<std::byte*>(memory);
  }
  void enter(unsigned wanted) {
    const long submitted =
        syscall(SYS_io_uring_enter, fd_, unsubmitted_, wanted, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (submitted < 0 && errno != EINTR) fail("io_uring_enter", errno);
    if (submitted > 0) unsubmitted_ -= static_cast<unsigned>(submitted);
  }

  int fd_;
  io_uring_sqe* sqes_;
  unsigned *sq_tail_, *sq_array_, *cq_head_, *cq_tail_;
  unsigned sq_mask_, cq_mask_;
  io_uring_cqe* cqes_;
  unsigned unsubmitted_ = 0;
};

// ---- senders ---------------------------------------------------------------------------------

struct Sent {
  uint64_t bytes = 0;
  uint64_t reported = 0;  // sends that the kernel has reported to be over with their memory
  uint64_t copied = 0;
};

// Sends pieces until the time is over; piece(number) sends the memory of one and returns how much.
template <typename Piece>
void sendFor(double seconds, Sent& sent, Piece piece) {
  const Stopwatch watch;
  for (size_t number = 0; watch.seconds() < seconds; number = (number + 1) % kPieces) {
    sent.bytes += piece(number);
  }
}

Sent sendByCalls(int fd, std::byte* memory, double seconds) {
  Sent sent;
  sendFor(seconds, sent, [&](size_t number) {
    iovec part{memory + number * kPieceBytes, kPieceBytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const ssize_t put = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (put < 0) fail("sendmsg", errno);
    return static_cast<size_t>(put);
  });
  return sent;
}

// What the error queue says. False if it is empty.
bool readReport(int fd, Sent& sent) {
  char control[128];
  msghdr message{};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
    if (errno == EAGAIN) return false;
    fail("the error queue", errno);
  }
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    sock_extended_err error{};
    std::memcpy(&error, CMSG_DATA(part), sizeof error);
    if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
    const uint64_t sends = error.ee_data - error.ee_info + 1;
    sent.reported += sends;
    if (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) sent.copied += sends;
  }
  return true;
}

Sent sendWithoutCopy(int fd, std::byte* memory, double seconds) {
  const int on = 1;
  checked(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on), "SO_ZEROCOPY");
  Sent sent;
  uint64_t sends = 0;
  const auto awaitReports = [&](uint64_t wanted) {
    while (readReport(fd, sent)) {
    }
    while (sent.reported < wanted) {
      pollfd errors{fd, 0, 0};
      poll(&errors, 1, -1);
      readReport(fd, sent);
    }
  };
  sendFor(seconds, sent, [&](size_t number) {
    if (sends >= kPieces) awaitReports(sends - kPieces + 1);  // of the send that used this memory
    const ssize_t put =
        send(fd, memory + number * kPieceBytes, kPieceBytes, MSG_ZEROCOPY | MSG_NOSIGNAL);
    if (put < 0) fail("send with MSG_ZEROCOPY", errno);
    ++sends;
    return static_cast<size_t>(put);
  });
  awaitReports(sends);
  return sent;
}

Sent sendByRing(int fd, std::byte* memory, double seconds, bool copies) {
  Ring ring(256);
  Sent sent;
  uint64_t sends = 0;
  const auto take = [&]() -> ssize_t {  // what a send has sent, or -1 for a report
    const io_uring_cqe cqe = ring.wait();
    if (cqe.flags & IORING_CQE_F_NOTIF) {
      ++sent.reported;
      if (static_cast<unsigned>(cqe.res) & IORING_NOTIF_USAGE_ZC_COPIED) ++sent.copied;
      return -1;
    }
    if (cqe.res < 0) fail("a send of io_uring", -cqe.res);
    return cqe.res;
  };
  sendFor(seconds, sent, [&](size_t number) {
    while (!copies && sends >= kPieces && sent.reported < sends - kPieces + 1) take();
    auto& sqe = ring.next(copies ? IORING_OP_SEND : IORING_OP_SEND_ZC, fd,
                          memory + number * kPieceBytes, kPieceBytes);
    sqe.msg_flags = MSG_NOSIGNAL | MSG_WAITALL;
    if (!copies) sqe.ioprio = IORING_SEND_ZC_REPORT_USAGE;
    ++sends;
    ssize_t put = -1;
    while (put < 0) put = take();
    return static_cast<size_t>(put);
  });
  while (!copies && sent.reported < sends) take();
  return sent;
}

// ---- receivers -------------------------------------------------------------------------------

uint64_t receiveByCalls(int fd, std::byte* memory) {
  uint64_t bytes = 0;
  checked(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &kWakeBytes, sizeof kWakeBytes), "SO_RCVLOWAT");
  for (;;) {
    const ssize_t got = recv(fd, memory + bytes % (kMemoryBytes - kReadBytes), kReadBytes, 0);
    if (got < 0) fail("recv", errno);
    if (got == 0) return bytes;
    bytes += static_cast<uint64_t>(got);
  }
}

uint64_t receiveByRing(int fd, std::byte* memory) {
  Ring ring(8);
  checked(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &kWakeBytes, sizeof kWakeBytes), "SO_RCVLOWAT");
  for (uint64_t bytes = 0;;) {
    ring.next(IORING_OP_RECV, fd, memory + bytes % (kMemoryBytes - kReadBytes), kReadBytes);
    const io_uring_cqe cqe = ring.wait();
    if (cqe.res < 0) fail("a receive of io_uring", -cqe.res);
    if (cqe.res == 0) return bytes;
    bytes += static_cast<uint64_t>(cqe.res);
  }
}

// The kernel chooses which buffer of a pool it fills, so what a transport wants at a place of its
// own has to be copied there: `places` does so.
uint64_t receiveMultishot(int fd, std::byte* memory, bool places) {
  Ring ring(8);
  checked(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &kWakeBytes, sizeof kWakeBytes), "SO_RCVLOWAT");
  std::byte* const pool = pages(kPoolBuffers * kPoolBytes);
  auto* const buffers = reinterpret_cast<io_uring_buf*>(pages(kPoolBuffers * sizeof(io_uring_buf)));
  auto& tail = reinterpret_cast<io_uring_buf_ring*>(buffers)->tail;
  std::memset(buffers, 0, kPoolBuffers * sizeof(io_uring_buf));
  io_uring_buf_reg registration{};
  registration.ring_addr = reinterpret_cast<uintptr_t>(buffers);
  registration.ring_entries = kPoolBuffers;
  checked(static_cast<int>(syscall(SYS_io_uring_register, ring.descriptor(),
                                   IORING_REGISTER_PBUF_RING, &registration, 1)),
          "IORING_REGISTER_PBUF_RING");
  const auto give = [&](unsigned number) {
    io_uring_buf& buffer = buffers[tail % kPoolBuffers];
    buffer.addr = reinterpret_cast<uintptr_t>(pool + number * kPoolBytes);
    buffer.len = kPoolBytes;
    buffer.bid = static_cast<uint16_t>(number);
    std::atomic_ref(tail).store(static_cast<uint16_t>(tail + 1), std::memory_order_release);
  };
  for (unsigned number = 0; number < kPoolBuffers; ++number) give(number);
  const auto begin = [&] {
    auto& sqe = ring.next(IORING_OP_RECV, fd, nullptr, 0);
    sqe.ioprio = IORING_RECV_MULTISHOT;
    sqe.flags = IOSQE_BUFFER_SELECT;
  };
  begin();
  for (uint64_t bytes = 0;;) {
    const io_uring_cqe cqe = ring.wait();
    if (cqe.res < 0 && cqe.res != -ENOBUFS) fail("a multishot receive", -cqe.res);
    if (cqe.res == 0) return bytes;
    if (cqe.res > 0) {
      const unsigned number = cqe.flags >> IORING_CQE_BUFFER_SHIFT;
      const auto count = static_cast<size_t>(cqe.res);
      if (places) {
        std::memcpy(memory + bytes % (kMemoryBytes - kReadBytes), pool + number * kPoolBytes,
                    count);
      }
      bytes += count;
      give(number);
    }
    if (!(cqe.flags & IORING_CQE_F_MORE)) begin();
  }
}

// ---- zero-copy receive -----------------------------------------------------------------------

// As <linux/io_uring.h> has had them since Linux 6.15.
struct Region {
  uint64_t address, size;
  uint32_t flags, id;
  uint64_t offset, reserved[4];
};
struct Area {
  uint64_t address, size, token;
  uint32_t flags, dmabuf;
  uint64_t reserved[2];
};
struct Queue {
  uint32_t interface, number, entries, flags;
  uint64_t area, region;
  uint32_t offsets[4];
  uint64_t reserved_offsets[2];
  uint32_t id, reserved;
  uint64_t more[3];
};
constexpr unsigned kRegisterQueue = 32;  // IORING_REGISTER_ZCRX_IFQ
constexpr uint32_t kUsersRegion = 1;     // IORING_MEM_REGION_TYPE_USER

int askZeroCopyReceive(const char* interface) {
  const Ring ring(8, IORING_SETUP_CQE32 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
  Region region{};
  region.size = 64 << 10;
  region.address = reinterpret_cast<uintptr_t>(pages(region.size));
  region.flags = kUsersRegion;
  Area area{};
  area.size = 1 << 20;
  area.address = reinterpret_cast<uintptr_t>(pages(area.size));
  Queue queue{};
  queue.interface = if_nametoindex(interface);
  queue.entries = 256;
  queue.area = reinterpret_cast<uintptr_t>(&area);
  queue.region = reinterpret_cast<uintptr_t>(&region);
  const long answer = syscall(SYS_io_uring_register, ring.descriptor(), kRegisterQueue, &queue, 1);
  std::printf("%s\n", answer < 0 ? std::strerror(errno) : "accepted");
  return 0;
}

// ---- both ends -------------------------------------------------------------------------------

int connected(bool sends, const char* address, int port) {
  const int fd = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &name.sin_addr);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&name);
  if (sends) {
    checked(setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof kUnsentBytes),
            "TCP_NOTSENT_LOWAT");
    checked(connect(fd, generic, sizeof name), "connect");
    return fd;
  }
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  checked(bind(fd, generic, sizeof name), "bind");
  checked(listen(fd, 1), "listen");
  const int connection = checked(accept(fd, nullptr, nullptr), "accept");
  close(fd);
  return connection;
}

int sendAll(const std::string& way, const char* address, int port, double seconds) {
  std::byte* const memory = pages(kMemoryBytes);
  const int fd = connected(true, address, port);
  const Stopwatch watch;
  const Sent sent = way == "calls"      ? sendByCalls(fd, memory, seconds)
                    : way == "zerocopy" ? sendWithoutCopy(fd, memory, seconds)
                                        : sendByRing(fd, memory, seconds, way == "uring");
  std::printf("%ju %.6f %.6f %ju %ju\n", static_cast<uintmax_t>(sent.bytes), watch.seconds(),
              watch.processor(), static_cast<uintmax_t>(sent.reported),
              static_cast<uintmax_t>(sent.copied));
  close(fd);
  return 0;
}

int receiveAll(const std::string& way, const char* address, int port) {
  std::byte* const memory = pages(kMemoryBytes);
  const int fd = connected(false, address, port);
  const Stopwatch watch;
  const uint64_t bytes = way == "calls"   ? receiveByCalls(fd, memory)
                         : way == "uring" ? receiveByRing(fd, memory)
                                          : receiveMultishot(fd, memory, way == "multishot-placed");
  std::printf("%ju %.6f %.6f\n", static_cast<uintmax_t>(bytes), watch.seconds(), watch.processor());
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (what == "send" && count == 6) {
    return sendAll(arguments[2], arguments[3], std::atoi(arguments[4]), std::atof(arguments[5]));
  }
  if (what == "receive" && count == 5) {
    return receiveAll(arguments[2], arguments[3], std::atoi(arguments[4]));
  }
  if (what == "zero-copy-receive" && count == 3) return askZeroCopyReceive(arguments[2]);
  std::fprintf(stderr, "socket_ways: see socket_ways.py\n");
  return 2;
}
