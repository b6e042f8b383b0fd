#include "plan/direct_schedules.h"

#include <algorithm>
#include <bit>

#include "plan/schedule_parts.h"

namespace topoopt {
namespace {

size_t positionOf(const std::vector<int>& order, int rank) {
  return static_cast<size_t>(std::find(order.begin(), order.end(), rank) - order.begin());
}

// Each even one of the first 2 * extra positions hands its data to the next odd one.
struct Doubling {
  size_t core;   // a power of two: members of the exchanges
  size_t extra;  // members that hand over their data

  explicit Doubling(size_t members) : core(std::bit_floor(members)), extra(members - core) {}
  size_t position(size_t number) const { return number < extra ? 2 * number + 1 : number + extra; }
  size_t number(size_t position) const {
    return position < 2 * extra ? position / 2 : position - extra;
  }
};

}  // namespace

Schedule exchangeSchedule(int rank, const std::vector<size_t>& send_bytes,
                          const std::vector<size_t>& receive_bytes, int part) {
  Schedule schedule;
  const int lane = addLane(schedule, 0, part);
  const int size = static_cast<int>(send_bytes.size());
  const std::vector<size_t> send_starts = blockStarts(send_bytes);
  const std::vector<size_t> receive_starts = blockStarts(receive_bytes);
  for (int distance = 1; distance < size; ++distance) {
    const int target = (rank + distance) % size;
    const int source = (rank + size - distance) % size;
    if (send_bytes[target] > 0) {
      addSend(schedule, lane, target, {Buffer::kInput, send_starts[target], send_bytes[target]},
              {});
    }
    if (receive_bytes[source] > 0) {
      Receive receive;
      receive.peer = source;
      receive.into = {Buffer::kOutput, receive_starts[source], receive_bytes[source]};
      addReceive(schedule, lane, receive);
    }
  }
  return schedule;
}

size_t doublingRounds(size_t members) {
  return static_cast<size_t>(std::bit_width(std::bit_floor(members))) - 1;
}

Schedule doublingAllReduceSchedule(const std::vector<int>& order, int rank, size_t count,
                                   size_t element_bytes, int part) {
  Schedule schedule;
  const size_t bytes = count * element_bytes;
  if (bytes == 0 || order.size() < 2) return schedule;
  const int lane = addLane(schedule, 0, part);
  const Range data{Buffer::kInput, 0, bytes};
  const Doubling doubling(order.size());
  const size_t position = positionOf(order, rank);
  const bool paired = position < 2 * doubling.extra;
  if (paired && position % 2 == 0) {
    addSend(schedule, lane, order[position + 1], data, {});
    Receive result;
    result.peer = order[position + 1];
    result.into = data;
    addReceive(schedule, lane, result);
    return schedule;
  }
  StepRef last;
  StepRef sent;
  const auto addPart = [&](int peer) {
    Receive receive;
    receive.peer = peer;
    receive.into = {Buffer::kScratch, schedule.scratch_bytes, bytes};
    receive.reduce = true;
    receive.target = data;
    receive.operand = receive.into;
    receive.turn_after = last;
    receive.turn_after_send = sent;
    schedule.scratch_bytes += bytes;
    last = addReceive(schedule, lane, receive);
  };
  if (paired) addPart(order[position - 1]);
  const size_t number = doubling.number(position);
  for (size_t distance = 1; distance < doubling.core; distance *= 2) {
    const int peer = order[doubling.position(number ^ distance)];
    sent = addSend(schedule, lane, peer, data, last);
    addPart(peer);
  }
  if (paired) addSend(schedule, lane, order[position - 1], data, last);
  return schedule;
}

Schedule disseminationSchedule(const std::vector<int>& order, int rank, int part) {
  Schedule schedule;
  const size_t size = order.size();
  if (size < 2) return schedule;
  const int lane = addLane(schedule, 0, part);
  const size_t position = positionOf(order, rank);
  StepRef last;
  for (size_t distance = 1; distance < size; distance *= 2) {
    addSend(schedule, lane, order[(position + distance) % size], {Buffer::kInput, 0, 1}, last);
    Receive receive;
    receive.peer = order[(position + size - distance) % size];
    receive.into = {Buffer::kScratch, schedule.scratch_bytes++, 1};
    receive.turn_after = last;
    last = addReceive(schedule, lane, receive);
  }
  return schedule;
}

}  // namespace topoopt
