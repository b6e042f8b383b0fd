#include "common/worker_pool.h"

#include <pthread.h>

#include <utility>

#include "common/thread.h"

namespace topoopt {

WorkerPool::WorkerPool(size_t threads) {
  try {
    for (size_t i = 0; i < threads; ++i) {
      threads_.push_back(quietThread([this] { loop(); }));
      pthread_setname_np(threads_.back().native_handle(), "topoopt-work");
    }
  } catch (...) {
    end();
    throw;
  }
}

WorkerPool::~WorkerPool() { end(); }

void WorkerPool::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(size_t pieces, std::function<void(size_t)> piece, std::function<void()> done) {
  if (pieces == 0) return done();
  auto task = std::make_shared<Task>(std::move(piece), std::move(done), pieces);
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  if (pieces == 1) {
    changed_.notify_one();
  } else {
    changed_.notify_all();
  }
}

void WorkerPool::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::shared_ptr<Task> task = tasks_.front();
    const size_t number = task->next++;
    if (task->next == task->pieces) tasks_.pop_front();
    lock.unlock();
    task->piece(number);
    if (--task->left == 0) task->done();
    lock.lock();
  }
}

}  // namespace topoopt
