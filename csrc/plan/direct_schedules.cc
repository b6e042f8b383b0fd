#include "plan/direct_schedules.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "plan/schedule_parts.h"
#include "plan/torus_lines.h"

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

// A sum in kInput to which members add their own, one after the other.
class SumInPlace {
 public:
  SumInPlace(Schedule& schedule, int lane, Range data)
      : schedule_(schedule), lane_(lane), data_(data) {}

  void send(int peer) { sent_ = addSend(schedule_, lane_, peer, data_, last_); }

  void add(int peer) {
    Receive receive;
    receive.peer = peer;
    receive.into = {Buffer::kScratch, schedule_.scratch_bytes, data_.bytes};
    receive.reduce = true;
    receive.target = data_;
    receive.operand = receive.into;
    receive.turn_after = last_;
    receive.turn_after_send = sent_;
    schedule_.scratch_bytes += data_.bytes;
    last_ = addReceive(schedule_, lane_, receive);
  }

 private:
  Schedule& schedule_;
  const int lane_;
  const Range data_;
  StepRef last_;
  StepRef sent_;
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
  SumInPlace sum(schedule, lane, data);
  if (paired) sum.add(order[position - 1]);
  const size_t number = doubling.number(position);
  for (size_t distance = 1; distance < doubling.core; distance *= 2) {
    const int peer = order[doubling.position(number ^ distance)];
    sum.send(peer);
    sum.add(peer);
  }
  if (paired) sum.send(order[position - 1]);
  return schedule;
}

std::vector<int> swingPartners(const plan::Grid& grid, size_t row, size_t column, size_t number) {
  const size_t rows = grid.size();
  const size_t columns = grid.front().size();
  std::array<size_t, 2> left = {doublingRounds(columns), doublingRounds(rows)};
  std::array<std::ptrdiff_t, 2> distance = {1, 1};
  const auto partner = [](size_t at, std::ptrdiff_t by, size_t size) {
    const auto all = static_cast<std::ptrdiff_t>(size);
    const auto moved = static_cast<std::ptrdiff_t>(at) + (at % 2 == 0 ? by : -by);
    return static_cast<size_t>((moved % all + all) % all);
  };
  std::vector<int> partners;
  for (size_t line = number % 2; left[0] + left[1] > 0; line = 1 - line) {
    if (left[line] == 0) continue;
    --left[line];
    const std::ptrdiff_t by = number < 2 ? distance[line] : -distance[line];
    distance[line] = 1 - 2 * distance[line];  // 1, -1, 3, -5, 11
    partners.push_back(line == 0 ? grid[row][partner(column, by, columns)]
                                 : grid[partner(row, by, rows)][column]);
  }
  return partners;
}

Schedule swingAllReduceSchedule(const plan::Grid& grid, int rank, size_t count,
                                size_t element_bytes, int part) {
  Schedule schedule;
  for (size_t number = 0; number < kTorusParts; ++number) {
    const Extent extent = divide({0, count}, kTorusParts, number);
    if (extent.count == 0) continue;
    SumInPlace sum(schedule, addLane(schedule, number, part),
                   {Buffer::kInput, extent.first * element_bytes, extent.count * element_bytes});
    for (size_t row = 0; row < grid.size(); ++row) {
      const size_t column = positionOf(grid[row], rank);
      if (column == grid[row].size()) continue;
      for (const int partner : swingPartners(grid, row, column, number)) {
        sum.send(partner);
        sum.add(partner);
      }
    }
  }
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
