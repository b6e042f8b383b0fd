// Threads outside of the interpreter.

#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace topoopt {

// Runs `function` on a thread that blocks signals, which belong to the interpreter's main thread.
// Throws std::system_error.
template <typename Function>
std::thread quietThread(Function function) {
  // A thread inherits the signal mask, so block signals while it starts.
  struct Mask {
    sigset_t before;
    Mask() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Mask() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  } mask;
  return std::thread(std::move(function));
}

}  // namespace topoopt
