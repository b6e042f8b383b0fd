#include "collectives/operation.h"

#include <utility>

namespace topoopt {

Operation::Operation(Endpoint& endpoint, Setup setup, Done done)
    : endpoint_(endpoint),
      setup_(std::move(setup)),
      done_(std::move(done)),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(setup_.schedule.scratch_bytes)) {
  for (const Lane& lane : setup_.schedule.lanes) {
    LaneState state;
    state.received.resize(lane.receives.size());
    state.sent.resize(lane.sends.size());
    lanes_.push_back(std::move(state));
    left_ += lane.receives.size() + lane.sends.size();
  }
}

void Operation::start() {
  if (left_ == 0) return finish(nullptr);
  const auto self = shared_from_this();
  for (size_t lane = 0; lane < lanes_.size(); ++lane) advance(lane);
}

std::set<int> Operation::waitingFor() const {
  std::set<int> ranks;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = setup_.schedule.lanes[i];
    for (size_t r = 0; r < lanes_[i].next_receive; ++r) {
      if (!lanes_[i].received[r]) ranks.insert(setup_.ranks[lane.receives[r].peer]);
    }
  }
  return ranks;
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
  return scratch_.get() + range.offset;
}

FlowId Operation::flow(const Lane& lane, int peer) const {
  return {setup_.ranks[peer], setup_.channel, lane.stream};
}

// Callbacks may come at once and call advance() again; one loop serves them all.
void Operation::advance(size_t lane) {
  LaneState& state = lanes_[lane];
  state.again = true;
  if (std::exchange(state.advancing, true)) return;
  while (std::exchange(state.again, false)) {
    while (done_ && postReceive(lane)) {
    }
    while (done_ && issueSend(lane)) {
    }
  }
  state.advancing = false;
}

bool Operation::postReceive(size_t lane) {
  LaneState& state = lanes_[lane];
  const auto& receives = setup_.schedule.lanes[lane].receives;
  const size_t index = state.next_receive;
  if (index == receives.size()) return false;
  const Receive& receive = receives[index];
  if (receive.after >= 0 && !state.received[receive.after]) return false;
  if (receive.after_send >= 0 && !state.sent[receive.after_send]) return false;
  ++state.next_receive;
  endpoint_.receive(flow(setup_.schedule.lanes[lane], receive.peer), at(receive.into),
                    receive.into.bytes, setup_.fingerprint,
                    [self = shared_from_this(), lane, index](std::exception_ptr error) {
                      if (error) return self->finish(error);
                      self->onReceived(lane, index);
                    });
  return true;
}

bool Operation::issueSend(size_t lane) {
  LaneState& state = lanes_[lane];
  const auto& sends = setup_.schedule.lanes[lane].sends;
  const size_t index = state.next_send;
  if (index == sends.size()) return false;
  const Send& send = sends[index];
  if (send.after >= 0 && !state.received[send.after]) return false;
  ++state.next_send;
  endpoint_.send(flow(setup_.schedule.lanes[lane], send.peer), at(send.from), send.from.bytes,
                 setup_.fingerprint,
                 [self = shared_from_this(), lane, index](std::exception_ptr error) {
                   if (error) return self->finish(error);
                   self->lanes_[lane].sent[index] = true;
                   if (--self->left_ == 0) return self->finish(nullptr);
                   self->advance(lane);
                 });
  return true;
}

void Operation::onReceived(size_t lane, size_t index) {
  if (!done_) return;
  const Receive& receive = setup_.schedule.lanes[lane].receives[index];
  if (receive.reduce) {
    reduceInto(setup_.type, setup_.op, at(receive.target), at(receive.operand),
               receive.target.bytes / elementSize(setup_.type));
  }
  lanes_[lane].received[index] = true;
  if (--left_ == 0) return finish(nullptr);
  advance(lane);
}

void Operation::finish(std::exception_ptr error) {
  if (const Done done = std::exchange(done_, nullptr)) done(error);
}

}  // namespace topoopt
