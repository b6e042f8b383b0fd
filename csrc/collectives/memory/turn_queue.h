// Runs functions in the order of submission: on the caller's thread if it waits and the queue is
// empty, else on a thread of the queue.

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
  // Called with its position, from 0. It must not throw.
  using Turn = std::function<void(uint64_t)>;

  TurnQueue();
  ~TurnQueue();

  TurnQueue(const TurnQueue&) = delete;
  TurnQueue& operator=(const TurnQueue&) = delete;

  // Submits a Turn. `synchronous`: the caller will wait for it. A function that runs at once is not
  // allocated.
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

  uint64_t count() const;

  // Runs all submitted functions and ends the thread; later functions run at once on their caller's
  // thread. Not from within a turn.
  void stop();

 private:
  void queue(uint64_t number, Turn turn);  // requires the mutex
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
