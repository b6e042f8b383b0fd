// A thread that waits for sockets, timers and posted functions. All state of an endpoint is
// confined to it, so it needs no locks.

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

  // Called on the reactor thread when the descriptor is ready; `events` are epoll's.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void onReady(uint32_t events) = 0;
    // The requested turn, after ready descriptors, posted functions and due timers.
    virtual void onTurn() {}
  };

  // Polls memory for changes that no descriptor reports.
  class Poller {
   public:
    virtual ~Poller() = default;
    virtual void poll() = 0;
    // Later changes must make a descriptor ready. Returns false if one has already happened.
    virtual bool prepareToSleep() = 0;
  };

  Reactor();   // throws std::system_error
  ~Reactor();  // stops

  // Ends the thread after the posted functions have run. Throws std::logic_error on the reactor
  // thread, which cannot wait for itself.
  void stop();
  bool onLoop() const { return std::this_thread::get_id() == loop_thread_; }

  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Any thread: runs `function` on the reactor thread, in call order. On a stopped reactor, it runs
  // at once on the caller's thread.
  void post(std::function<void()> function);

  // Any thread but the reactor's: runs `function` there and waits for it.
  void run(std::function<void()> function);

  // Reactor thread only.
  void watch(int fd, uint32_t events, Handler* handler);
  void rewatch(int fd, uint32_t events);  // of a watched descriptor
  void unwatch(int fd);
  void askTurn(Handler* handler) { turns_.push_back(handler); }
  void forget(Handler* handler);  // cancels its turns
  void addPoller(Poller* poller) { pollers_.push_back(poller); }
  void removePoller(Poller* poller) { std::erase(pollers_, poller); }
  TimerId at(Clock::time_point when, std::function<void()> function);
  TimerId after(std::chrono::milliseconds delay, std::function<void()> function);
  void cancel(const TimerId& timer);

 private:
  void closeDescriptors();
  void wake();
  void loop();
  bool mustStop();
  bool worthPolling(Clock::time_point now);
  int prepareToWait();
  void wait();
  void runPosted();
  void runTimers();
  void runTurns();
  void armTimer(Clock::time_point now);

  int epoll_fd_;
  int wake_fd_;
  // Armed for the first timer. A timeout per wait would make the kernel arm and disarm a timer each
  // time, which costs a microsecond or more in a virtual machine.
  int timer_fd_;
  Clock::time_point armed_{};  // last time set in timer_fd_
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  bool sleeping_ = false;  // a post must wake the thread
  bool stopping_ = false;
  bool stopped_ = false;
  std::map<TimerId, std::function<void()>> timers_;
  uint64_t next_timer_ = 0;
  std::vector<std::function<void()>> running_;  // posted functions being run
  std::map<int, Handler*> handlers_;
  std::vector<Handler*> turns_;
  std::vector<Handler*> taking_turns_;
  std::vector<Poller*> pollers_;
  bool busy_ = false;  // this round had work
  Clock::time_point last_busy_{};
  Clock::time_point scarce_until_{};  // no polling while other threads need the cores
  std::chrono::milliseconds scarce_time_{};
  std::thread thread_;
  std::thread::id loop_thread_;  // because joining changes thread_
};

}  // namespace topoopt
