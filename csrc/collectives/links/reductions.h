// Adds the long chunks of an operation on worker threads while the reactor thread continues.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "common/reduce.h"
#include "common/worker_pool.h"
#include "transport/reactor.h"

namespace topoopt {

class Reductions {
 public:
  // Adding shorter chunks takes less time than handing them over.
  static constexpr size_t kLeastBytes = 128 << 10;

  // `workers` may be nullptr; both must outlive this object.
  Reductions(Reactor& reactor, WorkerPool* workers);
  ~Reductions() { settle(); }

  Reductions(const Reductions&) = delete;
  Reductions& operator=(const Reductions&) = delete;

  // Reactor thread only. Returns whether workers should add this many bytes.
  bool take(size_t bytes) const { return workers_ != nullptr && bytes >= kLeastBytes; }
  // Runs reduceInto() in pieces, with the same bits. `done` is called later on the reactor thread,
  // unless settle() is called first.
  void begin(DataType type, ReduceOp op, std::byte* target, const std::byte* operand, size_t count,
             std::function<void()> done);
  // Waits until the workers no longer use any memory, and drops their `done` callbacks.
  void settle();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    size_t running = 0;       // guarded by mutex
    uint64_t generation = 0;  // of unsettled work; reactor thread only
  };

  Reactor& reactor_;
  WorkerPool* const workers_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace topoopt
