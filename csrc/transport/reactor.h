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

  // Called on the reactor thread when its descriptor is ready; `events` as epoll gives them.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void onReady(uint32_t events) = 0;
    // The turn that it asked for, after what is ready, posted or due.
    virtual void onTurn() {}
  };

  // Polls for changes in memory, which no descriptor reports.
  class Poller {
   public:
    virtual ~Poller() = default;
    virtual void poll() = 0;
    // From now on a change must make a descriptor ready. False if there has been one already.
    virtual bool prepareToSleep() = 0;
  };

  Reactor();   // throws std::system_error
  ~Reactor();  // stops

  // Ends the thread; functions that were posted before still run. Throws std::logic_error on the
  // reactor thread, which cannot wait for its own end.
  void stop();
  bool onLoop() const { return std::this_thread::get_id() == loop_thread_; }

  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Any thread: runs `function` on the reactor thread, in the order of the calls; once the reactor
  // is stopped, at once and here.
  void post(std::function<void()> function);

  // Any thread but the reactor's: runs `function` there and returns when it has run.
  void run(std::function<void()> function);

  // Reactor thread only.
  void watch(int fd, uint32_t events, Handler* handler);
  void rewatch(int fd, uint32_t events);  // of one that is watched
  void unwatch(int fd);
  void askTurn(Handler* handler) { turns_.push_back(handler); }
  void forget(Handler* handler);  // its turns
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
  // Is armed for the first timer. A time limit of each wait would have the kernel arm and disarm
  // one in each, which costs a microsecond and more in a virtual machine.
  int timer_fd_;
  Clock::time_point armed_{};  // for which timer_fd_ was armed last
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  bool sleeping_ = false;  // then a post must wake the thread
  bool stopping_ = false;
  bool stopped_ = false;
  std::map<TimerId, std::function<void()>> timers_;
  uint64_t next_timer_ = 0;
  std::vector<std::function<void()>> running_;  // what was posted, while it runs
  std::map<int, Handler*> handlers_;
  std::vector<Handler*> turns_;
  std::vector<Handler*> taking_turns_;
  std::vector<Poller*> pollers_;
  bool busy_ = false;  // there was something to do in this round
  Clock::time_point last_busy_{};
  Clock::time_point scarce_until_{};  // others want the cores
  std::chrono::milliseconds scarce_time_{};
  std::thread thread_;
  std::thread::id loop_thread_;  // thread_ itself changes when it is joined
};

}  // namespace topoopt
