// The long chunks of an operation that worker threads add up, while the reactor thread goes on.

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
  // Shorter chunks are added in less time than handing them over takes.
  static constexpr size_t kLeastBytes = 128 << 10;

  // `workers` may be nullptr; what is given outlives this object.
  Reductions(Reactor& reactor, WorkerPool* workers);
  ~Reductions() { settle(); }

  Reductions(const Reductions&) = delete;
  Reductions& operator=(const Reductions&) = delete;

  // Reactor thread, as the rest. Whether workers shall add so many bytes.
  bool take(size_t bytes) const { return workers_ != nullptr && bytes >= kLeastBytes; }
  // reduceInto() in pieces, which give the same bits. `done` is called on the reactor thread later,
  // unless settle() comes first.
  void begin(DataType type, ReduceOp op, std::byte* target, const std::byte* operand, size_t count,
             std::function<void()> done);
  // Nothing of what was begun uses its memory any more on return, nor is its `done` called.
  void settle();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    size_t running = 0;       // guarded by mutex
    uint64_t generation = 0;  // of what is not settled; the reactor thread's
  };

  Reactor& reactor_;
  WorkerPool* const workers_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace topoopt
