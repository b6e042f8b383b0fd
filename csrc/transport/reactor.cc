#include "transport/reactor.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "common/errors.h"
#include "common/thread.h"

namespace topoopt {
namespace {

// A busy thread soon has more work. Polling this long before sleeping saves its wake-up and the
// other side's effort...
constexpr std::chrono::microseconds kPollTime{50};
// ...but only on idle cores: if a yield takes longer than this, another thread needs the core.
// Polling then pauses, each time twice as long.
constexpr std::chrono::microseconds kYieldTime{20};
constexpr std::chrono::milliseconds kShortScarceTime{10};
constexpr std::chrono::milliseconds kLongScarceTime{1000};

}  // namespace

Reactor::Reactor()
    : epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer_fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (epoll_fd_ < 0 || wake_fd_ < 0 || timer_fd_ < 0) {
    const int error = errno;
    closeDescriptors();
    throw std::system_error(error, std::generic_category(), "epoll, eventfd or timerfd");
  }
  // Edge-triggered, so the counter is never read.
  watch(wake_fd_, EPOLLIN | EPOLLET, nullptr);
  watch(timer_fd_, EPOLLIN | EPOLLET, nullptr);
  thread_ = quietThread([this] { loop(); });
  loop_thread_ = thread_.get_id();
  pthread_setname_np(thread_.native_handle(), "topoopt");  // for ps and debuggers
}

Reactor::~Reactor() {
  stop();
  closeDescriptors();
}

void Reactor::closeDescriptors() {
  for (const int fd : {timer_fd_, wake_fd_, epoll_fd_}) {
    if (fd >= 0) close(fd);
  }
}

void Reactor::stop() {
  if (onLoop()) throw std::logic_error("an endpoint cannot be closed on its own reactor thread");
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  wake();
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

void Reactor::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void Reactor::post(std::function<void()> function) {
  bool sleeping;
  {
    std::unique_lock lock(mutex_);
    if (stopped_) {
      lock.unlock();
      return function();
    }
    sleeping = std::exchange(sleeping_, false);
    posted_.push_back(std::move(function));
  }
  if (sleeping) wake();
}

void Reactor::run(std::function<void()> function) {
  std::promise<void> done;
  post([&] {
    try {
      function();
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.get_future().get();
}

void Reactor::watch(int fd, uint32_t events, Handler* handler) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) throwErrno("epoll_ctl");
  handlers_[fd] = handler;
}

void Reactor::rewatch(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event) != 0) throwErrno("epoll_ctl");
}

void Reactor::unwatch(int fd) {
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(fd);
}

void Reactor::forget(Handler* handler) {
  std::erase(turns_, handler);
  std::replace(taking_turns_.begin(), taking_turns_.end(), handler, static_cast<Handler*>(nullptr));
}

Reactor::TimerId Reactor::at(Clock::time_point when, std::function<void()> function) {
  const TimerId id{when, next_timer_++};
  timers_.emplace(id, std::move(function));
  return id;
}

Reactor::TimerId Reactor::after(std::chrono::milliseconds delay, std::function<void()> function) {
  // The clock counts nanoseconds, so "for ever" in milliseconds would overflow.
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 100);
  return at(Clock::now() + std::min(delay, kLongest), std::move(function));
}

void Reactor::cancel(const TimerId& timer) { timers_.erase(timer); }

void Reactor::runPosted() {
  {
    std::lock_guard lock(mutex_);
    sleeping_ = false;
    running_.swap(posted_);
  }
  if (!running_.empty()) busy_ = true;
  for (auto& function : running_) function();
  running_.clear();
}

void Reactor::runTimers() {
  if (timers_.empty()) return;
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto function = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    function();
  }
}

// Cancelled timers stay armed, at the cost of one needless wake-up.
void Reactor::armTimer(Clock::time_point now) {
  if (timers_.empty()) return;
  const Clock::time_point first = timers_.begin()->first.first;
  if (armed_ > now && armed_ <= first) return;
  armed_ = first;
  // 0 would disarm.
  const auto since_epoch = std::max(first.time_since_epoch(), Clock::duration(1));
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  itimerspec when{};
  when.it_value.tv_sec = seconds.count();
  when.it_value.tv_nsec = std::chrono::nanoseconds(since_epoch - seconds).count();
  if (timerfd_settime(timer_fd_, TFD_TIMER_ABSTIME, &when, nullptr) != 0) {
    throwErrno("timerfd_settime");
  }
}

void Reactor::runTurns() {
  if (!turns_.empty()) busy_ = true;
  taking_turns_.swap(turns_);
  for (size_t i = 0; i < taking_turns_.size(); ++i) {
    if (taking_turns_[i] != nullptr) taking_turns_[i]->onTurn();
  }
  taking_turns_.clear();
}

bool Reactor::worthPolling(Clock::time_point now) {
  if (std::exchange(busy_, false)) last_busy_ = now;
  if (now - last_busy_ >= kPollTime || now < scarce_until_) return false;
  sched_yield();
  if (Clock::now() - now > kYieldTime) {
    scarce_time_ = std::clamp(2 * scarce_time_, kShortScarceTime, kLongScarceTime);
    scarce_until_ = now + scarce_time_;
  } else {
    scarce_time_ = {};
  }
  return true;
}

// Returns the timeout for descriptors in milliseconds: 0 with pending work, else -1.
int Reactor::prepareToWait() {
  if (!turns_.empty()) return 0;
  const auto now = Clock::now();
  if (worthPolling(now)) return 0;
  bool quiet = true;
  for (Poller* poller : pollers_) quiet = poller->prepareToSleep() && quiet;
  if (!quiet) return 0;
  armTimer(now);
  std::lock_guard lock(mutex_);
  if (!posted_.empty() || stopping_) return 0;
  sleeping_ = true;
  return -1;
}

void Reactor::wait() {
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), prepareToWait());
  if (count > 0) busy_ = true;
  for (int i = 0; i < count; ++i) {
    // An earlier handler of this round may have unregistered it.
    const auto handler = handlers_.find(events[i].data.fd);
    if (handler != handlers_.end() && handler->second != nullptr) {
      handler->second->onReady(events[i].events);
    }
  }
  for (size_t i = 0; i < pollers_.size(); ++i) pollers_[i]->poll();
}

bool Reactor::mustStop() {
  std::lock_guard lock(mutex_);
  return stopping_ && posted_.empty();
}

void Reactor::loop() {
  while (!mustStop()) {
    wait();
    runPosted();
    runTimers();
    runTurns();
  }
}

}  // namespace topoopt
