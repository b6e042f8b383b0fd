#include "transport/reactor.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <system_error>
#include <utility>

namespace topoopt {
namespace {

[[noreturn]] void throwErrno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Reactor::Reactor() : epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_fd_ < 0) throwErrno("epoll_create1");
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    close(epoll_fd_);
    throwErrno("eventfd");
  }
  watch(wake_fd_, EPOLLIN, nullptr);
  // Signals belong to the interpreter's main thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { loop(); });
  loop_thread_ = thread_.get_id();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Reactor::~Reactor() {
  stop();
  close(wake_fd_);
  close(epoll_fd_);
}

void Reactor::stop() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
  thread_.join();
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      stopped_ = posted_.empty();
      if (stopped_) return;
    }
    runPosted();
  }
}

void Reactor::post(std::function<void()> function) {
  bool wake;
  {
    std::unique_lock lock(mutex_);
    if (stopped_) {
      lock.unlock();
      return function();
    }
    wake = posted_.empty();
    posted_.push_back(std::move(function));
  }
  if (!wake || std::this_thread::get_id() == loop_thread_) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void Reactor::run(std::function<void()> function) {
  std::promise<void> done;
  {
    std::unique_lock lock(mutex_);
    if (stopped_) {
      lock.unlock();
      return function();
    }
    posted_.push_back([&] {
      function();
      done.set_value();
    });
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
  done.get_future().wait();
}

void Reactor::watch(int fd, uint32_t events, Handler* handler) {
  control(EPOLL_CTL_ADD, fd, events);
  handlers_[fd] = handler;
}

void Reactor::change(int fd, uint32_t events) { control(EPOLL_CTL_MOD, fd, events); }

void Reactor::control(int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_fd_, operation, fd, &event) != 0) throwErrno("epoll_ctl");
}

void Reactor::forget(int fd) {
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(fd);
}

Reactor::TimerId Reactor::at(Clock::time_point when, std::function<void()> function) {
  const TimerId id{when, next_timer_++};
  timers_.emplace(id, std::move(function));
  return id;
}

Reactor::TimerId Reactor::after(std::chrono::milliseconds delay, std::function<void()> function) {
  // The clock counts nanoseconds: "for ever" in milliseconds would overflow it.
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 100);
  return at(Clock::now() + std::min(delay, kLongest), std::move(function));
}

void Reactor::cancel(const TimerId& timer) { timers_.erase(timer); }

void Reactor::runPosted() {
  std::vector<std::function<void()>> functions;
  {
    std::lock_guard lock(mutex_);
    functions.swap(posted_);
  }
  for (auto& function : functions) function();
}

void Reactor::runTimers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto function = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    function();
  }
}

int Reactor::waitMilliseconds() const {
  if (timers_.empty()) return -1;
  const auto left = timers_.begin()->first.first - Clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 1'000'000));
}

void Reactor::loop() {
  std::array<epoll_event, 64> events;
  for (;;) {
    bool pending;
    {
      std::lock_guard lock(mutex_);
      pending = !posted_.empty();
      if (stopping_ && !pending) return;
    }
    const int count = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()),
                                 pending ? 0 : waitMilliseconds());
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == wake_fd_) {
        uint64_t value;
        [[maybe_unused]] const ssize_t got = read(wake_fd_, &value, sizeof value);
        continue;
      }
      // A handler may have been forgotten by one that ran before it in this round.
      const auto handler = handlers_.find(fd);
      if (handler != handlers_.end()) handler->second->onReady(events[i].events);
    }
    runPosted();
    runTimers();
  }
}

}  // namespace topoopt
