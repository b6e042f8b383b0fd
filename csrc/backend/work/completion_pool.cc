#include "backend/work/completion_pool.h"

#include <utility>

#include "common/thread.h"

namespace topoopt {

CompletionPool::~CompletionPool() { stop(); }

void CompletionPool::stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) {
    // A callback may end the job.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void CompletionPool::run(std::function<void()> function) {
  std::unique_lock lock(mutex_);
  if (stopping_) {
    lock.unlock();
    return function();
  }
  waiting_.push_back(std::move(function));
  if (idle_ < waiting_.size()) {
    threads_.push_back(quietThread([this] { loop(); }));
  }
  changed_.notify_one();
}

void CompletionPool::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) return;
    {
      const auto function = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      function();
      // Frees the function here, without the lock, because that may need the GIL.
    }
    lock.lock();
  }
}

}  // namespace topoopt
