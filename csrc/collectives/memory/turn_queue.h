// Functions that run one after the other, in the order in which they were given: on the caller's
// thread if the caller waits and it is its turn at once, else on a thread of the queue.

#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace topoopt {

class TurnQueue {
 public:
  // Called with its place in the order, from 0. It must not throw.
  using Turn = std::function<void(uint64_t)>;

  TurnQueue();
  ~TurnQueue();  // stops

  TurnQueue(const TurnQueue&) = delete;
  TurnQueue& operator=(const TurnQueue&) = delete;

  // Takes a Turn. `synchronous`: the caller is going to wait for it. What runs at once needs no
  // memory of its own.
  template <typename Function>
  void submit(Function turn, bool synchronous) {
    std::unique_lock lock(mutex_);
    const uint64_t number = count_++;
    const bool ordered = !stopping_;
    if (ordered && (!synchronous || busy_ || !waiting_.empty())) {
      return queue(number, std::move(turn));
    }
    busy_ = busy_ || ordered;
    lock.unlock();
    turn(number);
    if (!ordered) return;
    lock.lock();
    busy_ = false;
    if (!waiting_.empty() || stopping_) changed_.notify_all();
  }

  // Functions submitted so far.
  uint64_t count() const;

  // Returns when all that was submitted has run, and ends the thread; later functions run at once,
  // on their caller's thread. Not from within a turn.
  void stop();

 private:
  void queue(uint64_t number, Turn turn);  // with the mutex
  void loop();

  const pid_t process_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<uint64_t, Turn>> waiting_;
  uint64_t count_ = 0;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace topoopt
