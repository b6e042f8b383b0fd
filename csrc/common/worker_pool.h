// Threads that run the pieces of one task after another.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace topoopt {

class WorkerPool {
 public:
  explicit WorkerPool(size_t threads);  // at least 1; throws std::system_error
  ~WorkerPool();                        // completes queued tasks

  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Any thread. Runs piece(0) to piece(pieces - 1) on the threads, concurrently and in any order,
  // then done() on one of them. Tasks begin in call order. Neither function may throw.
  void run(size_t pieces, std::function<void(size_t)> piece, std::function<void()> done);

 private:
  struct Task {
    Task(std::function<void(size_t)> piece, std::function<void()> done, size_t pieces)
        : piece(std::move(piece)), done(std::move(done)), pieces(pieces), left(pieces) {}

    const std::function<void(size_t)> piece;
    const std::function<void()> done;
    const size_t pieces;
    size_t next = 0;           // next piece to start; guarded by mutex_
    std::atomic<size_t> left;  // unfinished pieces
  };

  void end();
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;  // with pieces to start
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace topoopt
