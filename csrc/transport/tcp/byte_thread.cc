#include "transport/tcp/byte_thread.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/errors.h"
#include "common/thread.h"
#include "transport/near_processors.h"

namespace topoopt {
namespace {

// Longer batches end early with the bytes that have moved. The link's watcher then sees progress,
// and an idle link waits on the reactor instead.
constexpr std::chrono::milliseconds kMostTime{100};

Descriptor event() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throwErrno("eventfd");
  return Descriptor(fd);
}

void signal(const Descriptor& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof one);
}

}  // namespace

ByteThread::ByteThread(Way way, const std::optional<cpu_set_t>& processors)
    : way_(way),
      over_event_(event()),
      interrupt_event_(event()),
      thread_(quietThread([this, processors] { loop(processors); })) {
  pthread_setname_np(thread_.native_handle(), way == Way::kRead ? "topoopt-read" : "topoopt-write");
}

ByteThread::~ByteThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ByteThread::start(Reactor& reactor, std::function<void()> over) {
  over_ = std::move(over);
  taken_ = true;  // the rest of an earlier connection
  // Edge-triggered, so the counter is never read.
  reactor.watch(over_event_.get(), EPOLLIN | EPOLLET, this);
}

void ByteThread::stop(Reactor& reactor) {
  settle();
  reactor.unwatch(over_event_.get());
}

void ByteThread::begin(const Batch& batch) {
  batch_ = batch;
  first_ = 0;
  wake_bytes_.reset();
  place_ = static_cast<const std::byte*>(batch.parts[0].iov_base);
  bytes_ = 0;
  for (int i = 0; i < batch.part_count; ++i) bytes_ += batch.parts[i].iov_len;
  taken_ = false;
  moved_.store(0, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    running_ = true;
  }
  changed_.notify_all();
}

std::optional<ByteThread::Moved> ByteThread::take() {
  if (taken_ || running()) return std::nullopt;
  taken_ = true;
  return result_;
}

void ByteThread::settle() {
  if (!running()) return;
  interrupted_ = true;
  signal(interrupt_event_);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !running_; });
  }
  interrupted_ = false;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = ::read(interrupt_event_.get(), &count, sizeof count);
}

void ByteThread::onReady(uint32_t) {
  if (!running() && !taken_) over_();
}

// ---- the thread --------------------------------------------------------------------------------

void ByteThread::loop(const std::optional<cpu_set_t>& processors) {
  if (processors) stayOn(*processors);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return running_ || ending_; });
    if (!running_) return;
    lock.unlock();
    result_ = move();
    lock.lock();
    running_ = false;
    changed_.notify_all();
    signal(over_event_);
  }
}

ByteThread::Moved ByteThread::move() {
  const auto until = Reactor::Clock::now() + kMostTime;
  Moved moved;
  while (!interrupted_) {
    const ssize_t count = call();
    if (count > 0) {
      moved.bytes += static_cast<size_t>(count);
      moved_.store(moved.bytes, std::memory_order_release);
      if (moved.bytes >= batch_.wanted) return moved;
      advance(static_cast<size_t>(count));
    } else if (count == 0 && way_ == Way::kRead) {
      moved.io = Io::kEnded;
      return moved;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      expect(batch_.wanted - moved.bytes);
      if (wait(until)) continue;
      if (!interrupted_) moved.io = Io::kBlocked;
      return moved;
    } else if (errno != EINTR) {
      moved.error = errno;
      const bool gone = way_ == Way::kWrite && (errno == EPIPE || errno == ECONNRESET);
      moved.io = gone ? Io::kEnded : Io::kBroken;
      return moved;
    }
  }
  return moved;
}

ssize_t ByteThread::call() {
  iovec parts[FrameQueue::kMaxParts];
  msghdr message{};
  message.msg_iov = parts;
  size_t bytes = 0;
  for (int i = first_; i < batch_.part_count && bytes < batch_.most_per_call; ++i) {
    const size_t size = std::min(batch_.parts[i].iov_len, batch_.most_per_call - bytes);
    parts[message.msg_iovlen++] = {batch_.parts[i].iov_base, size};
    bytes += size;
  }
  return way_ == Way::kRead ? recvmsg(batch_.fd, &message, MSG_DONTWAIT)
                            : sendmsg(batch_.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ByteThread::advance(size_t bytes) {
  while (bytes > 0) {
    iovec& part = batch_.parts[first_];
    const size_t taken = std::min(bytes, part.iov_len);
    part.iov_base = static_cast<std::byte*>(part.iov_base) + taken;
    part.iov_len -= taken;
    bytes -= taken;
    if (part.iov_len == 0) ++first_;
  }
}

// Waits for the socket. Returns false on a timeout, or if the memory is requested back.
bool ByteThread::wait(Reactor::Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Reactor::Clock::now());
  if (left.count() <= 0) return false;
  const short events = way_ == Way::kRead ? POLLIN | POLLRDHUP : POLLOUT;
  pollfd wanted[] = {{batch_.fd, events, 0}, {interrupt_event_.get(), POLLIN, 0}};
  const int ready = poll(wanted, 2, static_cast<int>(left.count()));
  return ready < 0 || (ready > 0 && wanted[1].revents == 0);
}

void ByteThread::expect(size_t bytes) {
  if (way_ != Way::kRead) return;
  wake_bytes_.expect(batch_.fd, bytes, WakeBytes::kMostFast);
}

}  // namespace topoopt
