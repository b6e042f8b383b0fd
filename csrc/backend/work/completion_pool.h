// Threads that complete futures. Callbacks may issue collectives and wait for them, as some DDP
// communication hooks do. So they run neither on the reactor thread nor in sequence: a thread is
// added whenever all are busy.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace topoopt {

class CompletionPool {
 public:
  CompletionPool() = default;
  ~CompletionPool();

  CompletionPool(const CompletionPool&) = delete;
  CompletionPool& operator=(const CompletionPool&) = delete;

  void run(std::function<void()> function);

  // Runs the queued functions and ends the threads; later functions run on their caller's thread.
  // Call it without the GIL and before the interpreter ends, because functions may need it.
  void stop();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace topoopt
