#include "collectives/links/reductions.h"

#include <algorithm>
#include <utility>

namespace topoopt {
namespace {

// A worker adds one piece at a time: two operands fit a core's cache.
constexpr size_t kPieceBytes = 64 << 10;

}  // namespace

Reductions::Reductions(Reactor& reactor, WorkerPool* workers)
    : reactor_(reactor), workers_(workers) {}

void Reductions::begin(DataType type, ReduceOp op, std::byte* target, const std::byte* operand,
                       size_t count, std::function<void()> done) {
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->running;
  }
  const size_t size = elementSize(type);
  const size_t each = kPieceBytes / size;
  const auto add = [=](size_t number) {
    const size_t first = number * each;
    reduceInto(type, op, target + first * size, operand + first * size,
               std::min(each, count - first));
  };
  // The posted function owns the state, because settle() may return and this object may be
  // destroyed first.
  const auto over = [state = state_, generation = state_->generation, &reactor = reactor_,
                     done = std::move(done)] {
    reactor.post([state, generation, done] {
      if (state->generation == generation) done();
    });
    const std::lock_guard lock(state->mutex);
    --state->running;
    state->changed.notify_all();
  };
  workers_->run((count + each - 1) / each, add, over);
}

void Reductions::settle() {
  ++state_->generation;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->running == 0; });
}

}  // namespace topoopt
