// One thread that waits for sockets, timers and posted functions. All state of an endpoint lives on
// this thread, so none of it needs a lock.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace topoopt {

class Reactor {
 public:
  using Clock = std::chrono::steady_clock;
  using TimerId = std::pair<Clock::time_point, uint64_t>;

  // Told on the reactor thread when its socket is ready; `events` as epoll gives them.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void onReady(uint32_t events) = 0;
  };

  Reactor();   // throws std::system_error
  ~Reactor();  // stops

  // Not on the reactor thread: ends it; functions that were posted before still run.
  void stop();

  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Any thread: runs `function` on the reactor thread, in the order of the calls; once the reactor
  // is stopped, at once and here.
  void post(std::function<void()> function);

  // Any thread but the reactor's: runs `function` there and returns when it has run.
  void run(std::function<void()> function);

  // Reactor thread only.
  void watch(int fd, uint32_t events, Handler* handler);
  void change(int fd, uint32_t events);
  void forget(int fd);
  TimerId at(Clock::time_point when, std::function<void()> function);
  TimerId after(std::chrono::milliseconds delay, std::function<void()> function);
  void cancel(const TimerId& timer);

 private:
  void control(int operation, int fd, uint32_t events);
  void loop();
  void runPosted();
  void runTimers();
  int waitMilliseconds() const;

  int epoll_fd_;
  int wake_fd_;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  bool stopping_ = false;
  bool stopped_ = false;
  std::map<TimerId, std::function<void()>> timers_;
  uint64_t next_timer_ = 0;
  std::map<int, Handler*> handlers_;
  std::thread thread_;
  std::thread::id loop_thread_;  // thread_ itself changes when it is joined
};

}  // namespace topoopt
