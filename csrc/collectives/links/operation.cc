#include "collectives/links/operation.h"

#include <algorithm>
#include <utility>

namespace topoopt {

Operation::Operation(Endpoint& endpoint, uint32_t channel, std::vector<int> ranks,
                     std::function<void(std::exception_ptr)> done)
    : endpoint_(endpoint),
      channel_(channel),
      ranks_(std::move(ranks)),
      done_(std::move(done)),
      reductions_(endpoint.reactor(), endpoint.workers()) {}

void Operation::start(Setup setup, std::function<void()> wake) {
  setup_ = std::move(setup);
  const PreparedSchedule& prepared = *setup_.prepared;
  lanes_.clear();
  size_t receives = 0;
  size_t sends = 0;
  for (const Lane& lane : prepared.schedule.lanes) {
    lanes_.push_back({.receives_at = receives, .sends_at = sends});
    receives += lane.receives.size();
    sends += lane.sends.size();
  }
  received_.assign(receives, Arrival::kPending);
  sent_.assign(sends, Departure::kPending);
  part_left_ = prepared.part_steps;
  if (counters_.size() < part_left_.size()) counters_.resize(part_left_.size());
  left_ = prepared.steps;
  receives_left_ = receives;
  hurried_ = false;
  error_ = nullptr;
  unlanded_.clear();
  if (setup_.landing) {
    describeSteps(*setup_.landing);
    setup_.landing->begin(std::move(wake));
  }
  started_ = Clock::now();
  running_ = true;
  reporting_ = true;
  ++depth_;
  for (size_t i = 0; i < lanes_.size() && running_; ++i) advance(static_cast<int>(i));
  if (left_ == 0) running_ = false;
  leave();
}

// Memory may be written several times: first partial sums, then the result. It is final after the
// schedule's last write.
void Operation::describeSteps(Landing& landing) const {
  const std::vector<Lane>& lanes = setup_.prepared->schedule.lanes;
  size_t longest = 0;
  for (const Lane& lane : lanes) {
    longest = std::max({longest, lane.receives.size(), lane.sends.size()});
  }
  const auto use = [&](const Range& range) {
    if (range.bytes == 0) return;
    if (range.buffer != Buffer::kScratch) landing.willUse(at(range), range.bytes);
  };
  for (size_t i = 0; i < longest; ++i) {  // in parallel, as lanes run
    for (const Lane& lane : lanes) {
      if (i < lane.sends.size()) use(lane.sends[i].from);
      if (i >= lane.receives.size()) continue;
      const Receive& receive = lane.receives[i];
      use(receive.into);
      if (receive.reduce) use(receive.operand);
      if (receive.base.bytes > 0) use(receive.base);
      if (receive.reduce) use(receive.target);
      const Range& written = receive.reduce ? receive.target : receive.into;
      if (written.bytes == 0) continue;
      if (written.buffer != Buffer::kScratch) landing.willWrite(at(written), written.bytes);
    }
  }
}

// Receives first, because sends may depend on them.
void Operation::onLanded() {
  if (!running_ || !setup_.landing) return;
  ++depth_;
  for (const StepRef& step : std::exchange(unlanded_, {})) {
    if (running_) completeInTurn(step);
  }
  for (size_t i = 0; i < lanes_.size() && running_; ++i) advance(static_cast<int>(i));
  leave();
}

void Operation::endLanding() {
  if (const auto landing = std::exchange(setup_.landing, nullptr)) landing->end();
}

void Operation::cancel() {
  reductions_.settle();
  endLanding();
  running_ = false;
  reporting_ = false;
}

std::set<int> Operation::waitingFor() const {
  std::set<int> ranks;
  if (!running_) return ranks;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = setup_.prepared->schedule.lanes[i];
    for (size_t r = 0; r < lanes_[i].next_receive; ++r) {
      if (received_[lanes_[i].receives_at + r] == Arrival::kPending) {
        ranks.insert(ranks_[lane.receives[r].peer]);
      }
    }
  }
  return ranks;
}

std::pair<uint64_t, size_t> Operation::progress() const {
  uint64_t consumed = 0;
  if (!running_) return {consumed, left_};
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = setup_.prepared->schedule.lanes[i];
    for (size_t r = 0; r < lanes_[i].next_receive; ++r) {
      if (received_[lanes_[i].receives_at + r] != Arrival::kPending) continue;
      consumed += endpoint_.consumedOf({ranks_[lane.receives[r].peer], channel(), lane.stream});
    }
  }
  return {consumed, left_};
}

bool Operation::received(const StepRef& step) const {
  return step.none() || received_[lanes_[step.lane].receives_at + step.index] == Arrival::kComplete;
}

bool Operation::sent(const StepRef& step) const {
  return step.none() || departure(step) == Departure::kComplete;
}

bool Operation::landed(const Range& range) const {
  return !setup_.landing || range.buffer == Buffer::kScratch || range.bytes == 0 ||
         setup_.landing->has(at(range), range.bytes);
}

std::byte* Operation::at(const Range& range) const {
  switch (range.buffer) {
    case Buffer::kInput:
      return static_cast<std::byte*>(setup_.buffers.input) + range.offset;
    case Buffer::kOutput:
      return static_cast<std::byte*>(setup_.buffers.output) + range.offset;
    case Buffer::kScratch:
      break;
  }
  return setup_.scratch + range.offset;
}

// Callbacks may run at once and call advance() again; one loop serves all of them.
void Operation::advance(int index) {
  LaneState& state = lanes_[index];
  state.again = true;
  if (std::exchange(state.advancing, true)) return;
  while (std::exchange(state.again, false)) {
    while (running_ && postReceive(index)) {
    }
    while (running_ && issueSend(index)) {
    }
  }
  state.advancing = false;
}

void Operation::advanceAfter(int index) {
  advance(index);
  for (const int waiting : setup_.prepared->waiting[index]) advance(waiting);
}

// The callbacks below capture a pointer and two small numbers, to avoid allocations.
bool Operation::postReceive(int index) {
  LaneState& state = lanes_[index];
  const auto& receives = lane(index).receives;
  if (state.next_receive == receives.size()) return false;
  const Receive& receive = receives[state.next_receive];
  if (!received(receive.after) || !freed(receive.after_send)) return false;
  if (!landed(receive.into)) return false;  // the copy from the device would overwrite it
  const StepRef step{index, static_cast<int>(state.next_receive++)};
  if (receive.peer == kLocal) {
    arrival(step) = Arrival::kArrived;
    completeInTurn(step);
    return true;
  }
  endpoint_.receive({ranks_[receive.peer], channel(), lane(index).stream}, at(receive.into),
                    receive.into.bytes, setup_.fingerprint,
                    [this, step](std::exception_ptr error) { onReceived(step, error); });
  return true;
}

bool Operation::issueSend(int index) {
  LaneState& state = lanes_[index];
  const auto& sends = lane(index).sends;
  if (state.next_send == sends.size()) return false;
  const Send& send = sends[state.next_send];
  if (!received(send.after) || !landed(send.from)) return false;
  const StepRef step{index, static_cast<int>(state.next_send++)};
  endpoint_.send(
      {ranks_[send.peer], channel(), lane(index).stream}, at(send.from), send.from.bytes,
      setup_.fingerprint, [this, step](std::exception_ptr error) { onSent(step, error); },
      receives_left_ == 0 || departure(step) == Departure::kAwaited,
      setup_.ways.empty() ? nullptr : setup_.ways[send.peer]);
  return true;
}

void Operation::onReceived(const StepRef& step, std::exception_ptr error) {
  if (!running_) return;
  ++depth_;
  if (error) {
    error_ = error;
    running_ = false;
  } else {
    arrival(step) = Arrival::kArrived;
    completeInTurn(step);
  }
  leave();
}

void Operation::onSent(const StepRef& step, std::exception_ptr error) {
  if (!running_) return;
  ++depth_;
  if (error) {
    error_ = error;
    running_ = false;
  } else {
    departure(step) = Departure::kComplete;
    const StepRef next = lane(step.lane).sends[step.index].turn_next;
    stepOver(step.lane);
    if (running_ && !next.none()) completeInTurn(next);
    if (running_) advanceAfter(step.lane);
  }
  leave();
}

// Completes an arrived receive if it is its turn, and the later ones that waited for it.
void Operation::completeInTurn(StepRef step) {
  while (running_ && !step.none() && arrival(step) == Arrival::kArrived) {
    const Receive& receive = lane(step.lane).receives[step.index];
    if (!received(receive.turn_after) || !freed(receive.turn_after_send)) return;
    if (receive.reduce &&
        !(landed(receive.target) && landed(receive.operand) && landed(receive.base))) {
      return unlanded_.push_back(step);
    }
    if (receive.reduce && !reduced(step)) return;
    complete(step);
    step = receive.turn_next;
  }
}

// Returns false if a worker adds it. Then it is incomplete until onReduced(), and no dependent step
// uses its memory.
bool Operation::reduced(const StepRef& step) {
  const Receive& receive = lane(step.lane).receives[step.index];
  const size_t bytes = receive.target.bytes;
  const size_t count = bytes / elementSize(setup_.type);
  if (receive.base.bytes > 0) {
    reduceTo(setup_.type, setup_.op, at(receive.target), at(receive.base), at(receive.operand),
             count);
    return true;
  }
  if (!reductions_.take(bytes)) {
    reduceInto(setup_.type, setup_.op, at(receive.target), at(receive.operand), count);
    return true;
  }
  arrival(step) = Arrival::kReducing;
  reductions_.begin(setup_.type, setup_.op, at(receive.target), at(receive.operand), count,
                    [this, step] { onReduced(step); });
  return false;
}

void Operation::onReduced(const StepRef& step) {
  if (!running_) return;
  ++depth_;
  complete(step);
  completeInTurn(lane(step.lane).receives[step.index].turn_next);
  leave();
}

void Operation::complete(const StepRef& step) {
  const Receive& receive = lane(step.lane).receives[step.index];
  arrival(step) = Arrival::kComplete;
  --receives_left_;
  if (setup_.landing) {
    const Range& written = receive.reduce ? receive.target : receive.into;
    if (written.buffer != Buffer::kScratch && written.bytes > 0)
      setup_.landing->wrote(at(written), written.bytes);
  }
  stepOver(step.lane);
  if (running_) advanceAfter(step.lane);
}

void Operation::stepOver(int index) {
  if (const int part = lane(index).part; part != kInsideServer && --part_left_[part] == 0) {
    counters_[part].seconds += std::chrono::duration<double>(Clock::now() - started_).count();
  }
  if (--left_ == 0) running_ = false;
}

// Returns whether the memory of a send may be overwritten. If not, requests it: the dependent step
// is retried once it is free.
bool Operation::freed(const StepRef& send) {
  if (sent(send)) return true;
  if (departure(send) == Departure::kPending) {
    departure(send) = Departure::kAwaited;
    endpoint_.hurry(channel());
  }
  return false;
}

// When only sends are left, the caller waits for their memory.
void Operation::hurrySends() {
  if (!running_ || receives_left_ > 0 || std::exchange(hurried_, true)) return;
  endpoint_.hurry(channel());
}

// Reports completion only when no call on the stack uses this operation any more.
void Operation::leave() {
  if (depth_ == 1) hurrySends();
  if (--depth_ > 0 || running_ || !std::exchange(reporting_, false)) return;
  if (error_) reductions_.settle();
  const auto prepared = std::move(setup_.prepared);
  endLanding();
  if (!error_) {
    for (size_t part = 0; part < prepared->part_bytes.size(); ++part) {
      counters_[part].sent_bytes += prepared->part_bytes[part];
    }
  }
  done_(error_);
}

}  // namespace topoopt
