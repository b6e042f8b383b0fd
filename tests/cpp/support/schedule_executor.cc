#include "support/schedule_executor.h"

#include <algorithm>

namespace topoopt {

ScheduleExecutor::ScheduleExecutor(std::vector<Schedule> schedules, size_t element_bytes,
                                   size_t window, TestRandom& random)
    : schedules_(std::move(schedules)),
      element_bytes_(element_bytes),
      window_(window),
      random_(random),
      buffers_(schedules_.size()),
      lanes_(schedules_.size()) {
  for (size_t rank = 0; rank < schedules_.size(); ++rank) {
    buffers_[rank].scratch.resize(schedules_[rank].scratch_bytes / element_bytes);
    for (size_t i = 0; i < schedules_[rank].lanes.size(); ++i) {
      const Lane& lane = schedules_[rank].lanes[i];
      lanes_[rank].push_back({0, 0, std::vector<bool>(lane.receives.size()),
                              std::vector<bool>(lane.receives.size()),
                              std::vector<bool>(lane.sends.size())});
      lane_ids_.push_back({static_cast<int>(rank), i});
      for (const Send& send : lane.sends) {
        flowBetween(static_cast<int>(rank), send.peer, lane.stream).source_lane = i;
      }
      for (const Receive& receive : lane.receives) {
        if (receive.peer == kLocal) continue;
        flowBetween(receive.peer, static_cast<int>(rank), lane.stream).target_lane = i;
      }
    }
  }
}

ScheduleExecutor::Flow& ScheduleExecutor::flowBetween(int source, int target, uint32_t stream) {
  const auto [entry, added] = flow_index_.try_emplace({source, target, stream}, flows_.size());
  if (added) flows_.push_back({source, target, 0, 0, {}, {}, {}, 0, 0, {}});
  return flows_[entry->second];
}

size_t ScheduleExecutor::elements(const Range& range) {
  if (range.bytes % element_bytes_ != 0 || range.offset % element_bytes_ != 0) {
    wrong_ = "a range cuts an element";
  }
  return range.bytes / element_bytes_;
}

uint64_t& ScheduleExecutor::at(int rank, const Range& range, size_t element) {
  MemberBuffers& own = buffers_[rank];
  Values& values = range.buffer == Buffer::kInput    ? own.input
                   : range.buffer == Buffer::kOutput ? own.output
                                                     : own.scratch;
  return values.at(range.offset / element_bytes_ + element);
}

void ScheduleExecutor::wrote(int rank, const Range& range, size_t element) {
  MemberBuffers& own = buffers_[rank];
  own.input_writes.resize(own.input.size());
  own.output_writes.resize(own.output.size());
  const size_t index = range.offset / element_bytes_ + element;
  if (range.buffer == Buffer::kInput) ++own.input_writes.at(index);
  if (range.buffer == Buffer::kOutput) ++own.output_writes.at(index);
}

bool ScheduleExecutor::received(int rank, const StepRef& step) const {
  return step.none() || lanes_[rank].at(step.lane).received.at(step.index);
}

bool ScheduleExecutor::sent(int rank, const StepRef& step) const {
  return step.none() || lanes_[rank].at(step.lane).sent.at(step.index);
}

bool ScheduleExecutor::post(const LaneId& id) {
  const Lane& lane = schedules_[id.rank].lanes[id.lane];
  LaneState& state = lanes_[id.rank][id.lane];
  if (state.posted == lane.receives.size()) return false;
  const Receive& receive = lane.receives[state.posted];
  if (!received(id.rank, receive.after) || !sent(id.rank, receive.after_send)) return false;
  const size_t index = state.posted++;
  if (receive.peer == kLocal) {
    state.arrived[index] = true;
    completeInTurn(id.rank, {static_cast<int>(id.lane), static_cast<int>(index)});
    return true;
  }
  flowBetween(receive.peer, id.rank, lane.stream).receives.push_back({index});
  return true;
}

bool ScheduleExecutor::issue(const LaneId& id) {
  const Lane& lane = schedules_[id.rank].lanes[id.lane];
  LaneState& state = lanes_[id.rank][id.lane];
  if (state.issued == lane.sends.size()) return false;
  const Send& send = lane.sends[state.issued];
  if (!received(id.rank, send.after)) return false;
  Flow& flow = flowBetween(id.rank, send.peer, lane.stream);
  flow.sends.push_back({state.issued++});
  flow.message_elements.push_back(elements(send.from));
  return true;
}

// Elements are read one by one, each at its own time: one that is overwritten too early is seen.
bool ScheduleExecutor::push(Flow& flow) {
  if (flow.sends.empty()) return false;
  const bool together = window_ == 0;  // then the receiver takes each element at once
  if (together ? flow.receives.empty() : flow.network.size() >= window_) return false;
  Transfer& transfer = flow.sends.front();
  const Send& send = schedules_[flow.source].lanes[flow.source_lane].sends[transfer.index];
  const size_t total = elements(send.from);
  const size_t room = together ? total : window_ - flow.network.size();
  size_t count = random_.between(1, std::max<size_t>(1, std::min(room, total - transfer.done)));
  for (; count > 0 && transfer.done < total; --count, ++transfer.done) {
    flow.network.push_back({flow.pushed, transfer.done, at(flow.source, send.from, transfer.done)});
    if (together) take(flow, 0);
  }
  if (transfer.done == total) {
    lanes_[flow.source][flow.source_lane].sent[transfer.index] = true;
    flow.sends.pop_front();
    ++flow.pushed;
    completeInTurn(flow.source, send.turn_next);
  }
  return true;
}

bool ScheduleExecutor::pull(Flow& flow) {
  bool moved = false;
  for (size_t count = random_.between(1, flow.network.size() + 1); count > 0; --count) {
    if (flow.network.empty()) break;
    const size_t last = flow.network.size() - 1;
    const size_t at = random_.chance(0.5) ? 0 : random_.between(0, last);
    moved |= take(flow, at) || (at > 0 && take(flow, 0));
  }
  return moved;
}

// Takes one element out of the network, if its receive is posted.
bool ScheduleExecutor::take(Flow& flow, size_t index) {
  const InNetwork arrived = flow.network[index];
  const size_t turn = arrived.message - flow.received;
  if (turn >= flow.receives.size()) return false;
  flow.network.erase(flow.network.begin() + static_cast<ptrdiff_t>(index));
  Transfer& transfer = flow.receives[turn];
  const Receive& receive = schedules_[flow.target].lanes[flow.target_lane].receives[transfer.index];
  if (elements(receive.into) != flow.message_elements[turn]) {
    wrong_ = "a message and its receive differ in size";
    return false;
  }
  wrote(flow.target, receive.into, arrived.element);
  at(flow.target, receive.into, arrived.element) = arrived.value;
  ++transfer.done;
  completeFront(flow);
  return true;
}

void ScheduleExecutor::completeFront(Flow& flow) {
  while (!flow.receives.empty() && !flow.message_elements.empty() &&
         flow.receives.front().done == flow.message_elements.front()) {
    const size_t index = flow.receives.front().index;
    lanes_[flow.target][flow.target_lane].arrived[index] = true;
    flow.receives.pop_front();
    flow.message_elements.pop_front();
    ++flow.received;
    completeInTurn(flow.target, {static_cast<int>(flow.target_lane), static_cast<int>(index)});
  }
}

void ScheduleExecutor::completeInTurn(int rank, StepRef step) {
  while (!step.none()) {
    LaneState& state = lanes_[rank].at(step.lane);
    const Receive& receive = schedules_[rank].lanes[step.lane].receives.at(step.index);
    if (!state.arrived[step.index] || state.received[step.index]) return;
    if (!received(rank, receive.turn_after) || !sent(rank, receive.turn_after_send)) return;
    if (receive.reduce) reduce(rank, receive);
    state.received[step.index] = true;
    step = receive.turn_next;
  }
}

void ScheduleExecutor::reduce(int rank, const Receive& receive) {
  const bool local = receive.peer == kLocal;
  const Range& base = local ? receive.base : receive.target;
  const size_t bytes = local ? base.bytes : receive.into.bytes;
  if (receive.target.bytes != bytes || receive.operand.bytes != bytes) {
    wrong_ = "a reduction of ranges that differ in size";
  }
  for (size_t i = 0; i < elements(receive.target); ++i) {
    wrote(rank, receive.target, i);
    at(rank, receive.target, i) = at(rank, base, i) + at(rank, receive.operand, i);
  }
}

bool ScheduleExecutor::act(const Action& action) {
  switch (action.step) {
    case Step::kPost:
      return post(lane_ids_[action.who]);
    case Step::kIssue:
      return issue(lane_ids_[action.who]);
    case Step::kPush:
      return push(flows_[action.who]);
    case Step::kPull:
      return pull(flows_[action.who]);
  }
  return false;
}

// Either any event may be next, or the events have a fixed order of preference: then some members
// stand still until the others cannot go on, which is where deadlocks hide.
std::string ScheduleExecutor::run() {
  std::vector<Action> actions;
  for (size_t i = 0; i < lane_ids_.size(); ++i) {
    actions.push_back({Step::kPost, i});
    actions.push_back({Step::kIssue, i});
  }
  for (size_t i = 0; i < flows_.size(); ++i) {
    actions.push_back({Step::kPush, i});
    actions.push_back({Step::kPull, i});
  }
  const bool preference = random_.chance(0.5);
  std::shuffle(actions.begin(), actions.end(), random_.engine());
  for (bool moved = true; moved && wrong_.empty();) {
    moved = false;
    if (!preference) std::shuffle(actions.begin(), actions.end(), random_.engine());
    for (const Action& action : actions) {
      if (!act(action)) continue;
      moved = true;
      if (preference) break;
    }
  }
  return wrong_.empty() ? leftOver() : wrong_;
}

std::string ScheduleExecutor::leftOver() const {
  std::string text;
  for (const LaneId& id : lane_ids_) {
    const Lane& lane = schedules_[id.rank].lanes[id.lane];
    const LaneState& state = lanes_[id.rank][id.lane];
    const size_t received = std::count(state.received.begin(), state.received.end(), true);
    const size_t sent = std::count(state.sent.begin(), state.sent.end(), true);
    if (received == lane.receives.size() && sent == lane.sends.size()) continue;
    text += "deadlock: member " + std::to_string(id.rank) + " lane " + std::to_string(id.lane) +
            " received " + std::to_string(received) + " of " +
            std::to_string(lane.receives.size()) + " and sent " + std::to_string(sent) + " of " +
            std::to_string(lane.sends.size()) + "\n";
  }
  for (const Flow& flow : flows_) {
    if (!flow.network.empty()) text += "data was left in the network\n";
  }
  return text;
}

}  // namespace topoopt
