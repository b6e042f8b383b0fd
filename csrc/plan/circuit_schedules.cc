#include "plan/circuit_schedules.h"

#include <algorithm>
#include <compare>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "plan/schedule_parts.h"

namespace topoopt {
namespace {

constexpr int kMostParts = 1 << 24;  // more than a planner makes of all pairs together

struct Chunk {
  int source;
  int target;
  int part;

  auto operator<=>(const Chunk&) const = default;
};

std::string textOf(const Chunk& chunk) {
  return "chunk " + std::to_string(chunk.part) + " from member " + std::to_string(chunk.source) +
         " to member " + std::to_string(chunk.target);
}

// Scratch memory of relayed chunks; sent chunks free theirs for the next topology.
class Blocks {
 public:
  size_t take(size_t bytes) {
    const auto fits = free_.lower_bound(bytes);
    if (fits == free_.end()) return std::exchange(end_, end_ + bytes);
    const auto [size, offset] = *fits;
    free_.erase(fits);
    if (size > bytes) free_.emplace(size - bytes, offset + bytes);
    return offset;
  }

  void leave(const Range& range) { left_.push_back(range); }

  void endTopology() {
    for (const Range& range : left_) free_.emplace(range.bytes, range.offset);
    left_.clear();
  }

  size_t bytes() const { return end_; }

 private:
  std::multimap<size_t, size_t> free_;  // size, offset
  std::vector<Range> left_;             // freed in this topology
  size_t end_ = 0;
};

class MemberSchedules {
 public:
  MemberSchedules(const CircuitProgram& program, int rank,
                  const std::vector<std::vector<size_t>>& bytes, int counter)
      : rank_(rank),
        bytes_(bytes),
        counter_(counter),
        input_starts_(blockStarts(bytes[rank])),
        parts_(bytes.size(), std::vector<int>(bytes.size(), 1)) {
    std::vector<size_t> received;
    for (const auto& row : bytes) received.push_back(row[rank]);
    output_starts_ = blockStarts(received);
    for (const std::vector<CircuitHop>& hops : program) {
      for (const CircuitHop& hop : hops) {
        check(hop);
        int& parts = parts_[hop.source][hop.target];
        parts = std::max(parts, hop.part + 1);
      }
    }
  }

  Schedule onTopology(const std::vector<CircuitHop>& hops) {
    Schedule schedule;
    lanes_.clear();
    arrived_.clear();
    for (const CircuitHop& hop : hops) {
      if (extentOf(chunkOf(hop)).count == 0 || hop.source == hop.target) continue;
      if (hop.sender == rank_) send(schedule, hop);
      if (hop.receiver == rank_) receive(schedule, hop);
    }
    blocks_.endTopology();
    return schedule;
  }

  // Describes missing chunks; "" if there are none.
  std::string missing() const {
    for (int other = 0; other < size(); ++other) {
      if (other == rank_) continue;
      for (const auto& [source, target, end] : {std::tuple(other, rank_, " never arrives"),
                                                std::tuple(rank_, other, " is never sent")}) {
        for (Chunk chunk{source, target, 0}; chunk.part < parts_[source][target]; ++chunk.part) {
          if (extentOf(chunk).count > 0 && !complete_.contains(chunk)) return textOf(chunk) + end;
        }
      }
    }
    return held_.empty() ? "" : textOf(held_.begin()->first) + " stays at a relay";
  }

  size_t scratchBytes() const { return blocks_.bytes(); }

 private:
  int size() const { return static_cast<int>(bytes_.size()); }

  void check(const CircuitHop& hop) const {
    for (const int member : {hop.sender, hop.receiver, hop.source, hop.target}) {
      if (member < 0 || member >= size()) {
        throw std::invalid_argument("there is no member " + std::to_string(member));
      }
    }
    if (hop.part < 0 || hop.part >= kMostParts) {
      throw std::invalid_argument("there is no part " + std::to_string(hop.part));
    }
  }

  static Chunk chunkOf(const CircuitHop& hop) { return {hop.source, hop.target, hop.part}; }

  // Its bytes, within those of its pair.
  Extent extentOf(const Chunk& chunk) const {
    const auto [source, target, part] = chunk;
    return divide({0, bytes_[source][target]}, parts_[source][target], part);
  }

  // One lane per neighbour, so that neighbours do not wait for each other's chunks.
  int laneTo(Schedule& schedule, int peer) {
    const auto [entry, added] = lanes_.try_emplace(peer, 0);
    if (added) entry->second = addLane(schedule, 0, counter_);
    return entry->second;
  }

  void send(Schedule& schedule, const CircuitHop& hop) {
    const Chunk chunk = chunkOf(hop);
    const auto [first, bytes] = extentOf(chunk);
    Range from{Buffer::kInput, input_starts_[hop.target] + first, bytes};
    if (hop.source == rank_) {
      if (!complete_.insert(chunk).second) throw twice(chunk);
    } else {
      const auto held = held_.find(chunk);
      if (held == held_.end()) {
        throw std::invalid_argument("member " + std::to_string(rank_) + " sends " + textOf(chunk) +
                                    ", which it does not have");
      }
      from = held->second;
      held_.erase(held);
      blocks_.leave(from);
    }
    const auto arrival = arrived_.find(chunk);
    addSend(schedule, laneTo(schedule, hop.receiver), hop.receiver, from,
            arrival == arrived_.end() ? StepRef{} : arrival->second);
  }

  void receive(Schedule& schedule, const CircuitHop& hop) {
    const Chunk chunk = chunkOf(hop);
    const auto [first, bytes] = extentOf(chunk);
    Receive step;
    step.peer = hop.sender;
    step.into = {Buffer::kOutput, output_starts_[hop.source] + first, bytes};
    if (hop.target == rank_) {
      if (!complete_.insert(chunk).second) throw twice(chunk);
    } else {
      if (held_.contains(chunk) || hop.source == rank_) throw twice(chunk);
      step.into = {Buffer::kScratch, blocks_.take(bytes), bytes};
      held_[chunk] = step.into;
    }
    arrived_[chunk] = addReceive(schedule, laneTo(schedule, hop.sender), step);
  }

  static std::invalid_argument twice(const Chunk& chunk) {
    return std::invalid_argument(textOf(chunk) + " passes a member twice");
  }

  const int rank_;
  const std::vector<std::vector<size_t>>& bytes_;
  const int counter_;
  const std::vector<size_t> input_starts_;
  std::vector<std::vector<int>> parts_;  // of each pair
  std::vector<size_t> output_starts_;
  Blocks blocks_;
  std::map<Chunk, Range> held_;       // relayed chunks in memory
  std::set<Chunk> complete_;          // sent own chunks and received ones
  std::map<int, int> lanes_;          // of this topology, by neighbour
  std::map<Chunk, StepRef> arrived_;  // on this topology
};

}  // namespace

std::vector<Schedule> circuitSchedules(const CircuitProgram& program, int rank,
                                       const std::vector<std::vector<size_t>>& bytes, int counter) {
  MemberSchedules member(program, rank, bytes, counter);
  std::vector<Schedule> schedules;
  for (const std::vector<CircuitHop>& hops : program) schedules.push_back(member.onTopology(hops));
  if (const std::string missing = member.missing(); !missing.empty()) {
    throw std::invalid_argument(missing);
  }
  for (Schedule& schedule : schedules) schedule.scratch_bytes = member.scratchBytes();
  return schedules;
}

}  // namespace topoopt
