#include "collectives/memory/turn_queue.h"

#include <unistd.h>

#include <optional>

#include "common/thread.h"

namespace topoopt {

TurnQueue::TurnQueue() : process_(getpid()) {}

TurnQueue::~TurnQueue() { stop(); }

void TurnQueue::queue(uint64_t number, Turn turn) {
  waiting_.emplace_back(number, std::move(turn));
  if (!thread_.joinable()) {
    thread_ = quietThread([this] { loop(); });
  }
  changed_.notify_all();
}

void TurnQueue::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !busy_ && (!waiting_.empty() || stopping_); });
    if (waiting_.empty()) return;
    auto next = std::make_optional(std::move(waiting_.front()));
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    next->second(next->first);
    next.reset();  // its destructor may take long
    lock.lock();
    busy_ = false;
    if (stopping_) changed_.notify_all();
  }
}

uint64_t TurnQueue::count() const {
  std::lock_guard lock(mutex_);
  return count_;
}

void TurnQueue::stop() {
  if (getpid() != process_) {  // forked: the thread does not exist here
    if (thread_.joinable()) thread_.detach();
    return;
  }
  std::thread thread;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !busy_ && waiting_.empty(); });
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

}  // namespace topoopt
