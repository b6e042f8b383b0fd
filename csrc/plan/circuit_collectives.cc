#include "plan/circuit_collectives.h"

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "plan/schedule_parts.h"

namespace topoopt {
namespace {

class BlockSchedules {
 public:
  BlockSchedules(const BlockProgram& program, int rank, const ScheduleKey& key, int size,
                 int counter)
      : program_(program),
        key_(key),
        size_(size),
        root_(key.collective == Collective::kBroadcast ? key.root : 0),
        rank_((rank - root_ + size) % size),
        counter_(counter),
        starts_(blockStarts(key.counts)),
        states_(static_cast<size_t>(program.parts) * program.blocks) {
    checkShape();
    for (const auto& hops : program.topologies) {
      for (const BlockHop& hop : hops) {
        check(hop);
        largest_bytes_ = std::max(largest_bytes_, rangeOf(hop, 0, 1).bytes);
      }
    }
    chunks_ = chunkCount(largest_bytes_, kSlots);
    if (scatters()) placeSums();
  }

  std::vector<Schedule> build() {
    std::vector<Schedule> schedules;
    size_t scratch_bytes = 0;
    for (const auto& hops : program_.topologies) {
      schedules.push_back(onTopology(hops));
      scratch_bytes = std::max(scratch_bytes, schedules.back().scratch_bytes);
    }
    for (Schedule& schedule : schedules) schedule.scratch_bytes = scratch_bytes;
    checkComplete();
    return schedules;
  }

 private:
  // One block of one part at this member.
  struct State {
    bool present = false;             // it has been received, or it is the member's own
    bool summed = false;              // others' data was added
    size_t sum_offset = 0;            // of a reduce_scatter, in scratch memory
    std::vector<StepRef> received{};  // per chunk: the last receive of this topology
  };

  bool gathers() const { return key_.collective == Collective::kAllGather; }
  bool scatters() const { return key_.collective == Collective::kReduceScatter; }

  void checkShape() const {
    const bool per_member = gathers() || scatters();
    const auto expected = static_cast<size_t>(per_member ? size_ : 1);
    if (key_.counts.size() != expected) throw std::invalid_argument("counts: there are too many");
    if (program_.parts < 1 || (program_.blocks != size_ && (per_member || program_.blocks != 1))) {
      throw std::invalid_argument("there are " + std::to_string(program_.blocks) + " blocks in " +
                                  std::to_string(program_.parts) + " parts");
    }
  }

  void check(const BlockHop& hop) const {
    for (const int member : {hop.sender, hop.receiver}) {
      if (member < 0 || member >= size_) {
        throw std::invalid_argument("there is no member " + std::to_string(member));
      }
    }
    if (hop.block < 0 || hop.block >= program_.blocks || hop.part < 0 ||
        hop.part >= program_.parts) {
      throw std::invalid_argument("there is no " + textOf(hop));
    }
    const bool adds = key_.collective == Collective::kAllReduce || scatters();
    if (hop.sender == hop.receiver || (hop.reduces && !adds) || (!hop.reduces && scatters())) {
      throw std::invalid_argument("member " + std::to_string(hop.sender) + " may not send " +
                                  textOf(hop) + " to member " + std::to_string(hop.receiver));
    }
  }

  static std::string textOf(const BlockHop& hop) {
    return "block " + std::to_string(hop.block) + " of part " + std::to_string(hop.part);
  }

  State& stateOf(const BlockHop& hop) { return states_[indexOf(hop)]; }
  size_t indexOf(const BlockHop& hop) const {
    return static_cast<size_t>(hop.part) * program_.blocks + hop.block;
  }

  // Chunk `chunk` of `chunks` of a block, in the memory of the caller that has whole messages.
  Range rangeOf(const BlockHop& hop, size_t chunk, size_t chunks) const {
    const bool per_member = gathers() || scatters();
    Extent extent{0, key_.counts[0]};
    if (per_member) extent = {starts_[hop.block], key_.counts[hop.block]};
    extent = divide(extent, program_.parts, hop.part);
    if (!per_member) extent = divide(extent, program_.blocks, hop.block);
    extent = divide(extent, chunks, chunk);
    return {gathers() ? Buffer::kOutput : Buffer::kInput, extent.first * key_.element_bytes,
            extent.count * key_.element_bytes};
  }

  // Memory for the sums of a reduce_scatter that this member passes on.
  void placeSums() {
    std::vector<bool> placed(states_.size(), false);
    for (const auto& hops : program_.topologies) {
      for (const BlockHop& hop : hops) {
        if (hop.receiver != rank_ || hop.block == rank_ || placed[indexOf(hop)]) continue;
        placed[indexOf(hop)] = true;
        stateOf(hop).sum_offset = sums_bytes_;
        sums_bytes_ += rangeOf(hop, 0, 1).bytes;
      }
    }
  }

  // The memory of a sum of a reduce_scatter: the output for the member's own block.
  Range sumOf(const BlockHop& hop, const Range& own) {
    if (hop.block == rank_) {
      return {Buffer::kOutput, own.offset - starts_[rank_] * key_.element_bytes, own.bytes};
    }
    const size_t first = rangeOf(hop, 0, 1).offset;
    return {Buffer::kScratch, stateOf(hop).sum_offset + own.offset - first, own.bytes};
  }

  Schedule onTopology(const std::vector<BlockHop>& hops) {
    schedule_ = {};
    schedule_.scratch_bytes = sums_bytes_;
    lanes_.clear();
    slots_.clear();
    for (State& state : states_) state.received.assign(chunks_, {});
    for (const BlockHop& hop : hops) {
      if (hop.sender == rank_) send(hop);
      if (hop.receiver == rank_) receive(hop);
    }
    return std::move(schedule_);
  }

  int memberAt(int place) const { return (place + root_) % size_; }

  // One lane per neighbour, so that neighbours do not wait for each other's chunks.
  int laneTo(int peer) {
    const auto [entry, added] = lanes_.try_emplace(peer, 0);
    if (added) entry->second = addLane(schedule_, 0, counter_);
    return entry->second;
  }

  Slots& slotsOf(int lane) {
    const size_t elements = (largest_bytes_ / key_.element_bytes + chunks_ - 1) / chunks_;
    const auto [entry, added] = slots_.try_emplace(lane, nullptr);
    if (added) {
      entry->second = std::make_unique<Slots>(schedule_, kSlots, elements * key_.element_bytes);
    }
    return *entry->second;
  }

  // Own data is there from the start: all of it before a sum, one block of an all_gather, and the
  // whole message at the root of a broadcast.
  bool has(const BlockHop& hop) {
    if (stateOf(hop).present) return true;
    if (gathers()) return hop.block == rank_;
    return key_.collective != Collective::kBroadcast || rank_ == 0;
  }

  void send(const BlockHop& hop) {
    State& state = stateOf(hop);
    if (!has(hop)) {
      throw std::invalid_argument("member " + std::to_string(rank_) + " sends " + textOf(hop) +
                                  ", which it does not have");
    }
    const int lane = laneTo(hop.receiver);
    for (size_t chunk = 0; chunk < chunks_; ++chunk) {
      Range from = rangeOf(hop, chunk, chunks_);
      if (from.bytes == 0) continue;
      if (scatters() && state.summed) from = sumOf(hop, from);
      addSend(schedule_, lane, memberAt(hop.receiver), from, state.received[chunk]);
    }
  }

  void receive(const BlockHop& hop) {
    State& state = stateOf(hop);
    const bool again = !hop.reduces && state.present;
    if (again || (!hop.reduces && key_.collective != Collective::kAllReduce && has(hop))) {
      throw std::invalid_argument("member " + std::to_string(rank_) + " gets " + textOf(hop) +
                                  " twice");
    }
    const int lane = laneTo(hop.sender);
    for (size_t chunk = 0; chunk < chunks_; ++chunk) {
      const Range own = rangeOf(hop, chunk, chunks_);
      if (own.bytes == 0) continue;
      Receive step;
      step.peer = memberAt(hop.sender);
      step.into = own;
      if (hop.reduces) {
        add(hop, lane, own, chunk, step);
      } else {
        state.received[chunk] = addReceive(schedule_, lane, step);
      }
    }
    (hop.reduces ? state.summed : state.present) = true;
  }

  // A sum in place of this member's data, or for a reduce_scatter in memory of its own.
  void add(const BlockHop& hop, int lane, const Range& own, size_t chunk, Receive& step) {
    State& state = stateOf(hop);
    step.reduce = true;
    step.turn_after = state.received[chunk];
    step.target = scatters() ? sumOf(hop, own) : own;
    if (scatters() && !state.summed) {
      step.into = step.target;
      step.operand = own;
      state.received[chunk] = addReceive(schedule_, lane, step);
      return;
    }
    Slots& slots = slotsOf(lane);
    const Slots::Slot slot = slots.take(step, own.bytes);
    step.into = slot.range;
    step.operand = slot.range;
    state.received[chunk] = addReceive(schedule_, lane, step);
    slots.filledBy(slot.number, state.received[chunk]);
  }

  // The last hops of a block are checked where it ends; the program as a whole has been replayed.
  void checkComplete() const {
    for (int part = 0; part < program_.parts; ++part) {
      for (int block = 0; block < program_.blocks; ++block) {
        const BlockHop hop{0, 0, block, part, false};
        const State& state = states_[indexOf(hop)];
        bool complete = state.present || state.summed;
        if (gathers()) complete = complete || block == rank_;
        if (scatters()) complete = complete || block != rank_;
        if (key_.collective == Collective::kBroadcast) complete = complete || rank_ == 0;
        if (!complete && size_ > 1) {
          throw std::invalid_argument(textOf(hop) + " never arrives at member " +
                                      std::to_string(rank_));
        }
      }
    }
  }

  const BlockProgram& program_;
  const ScheduleKey& key_;
  const int size_;
  const int root_;
  const int rank_;  // in the program
  const int counter_;
  const std::vector<size_t> starts_;
  std::vector<State> states_;
  size_t largest_bytes_ = 0;
  size_t chunks_ = 1;                            // of each block; some may be empty
  size_t sums_bytes_ = 0;                        // of a reduce_scatter, kept through all topologies
  Schedule schedule_;                            // of the current topology
  std::map<int, int> lanes_;                     // by neighbour
  std::map<int, std::unique_ptr<Slots>> slots_;  // by lane
};

}  // namespace

std::vector<Schedule> circuitCollectiveSchedules(const BlockProgram& program, int rank,
                                                 const ScheduleKey& key, int size, int counter) {
  return BlockSchedules(program, rank, key, size, counter).build();
}

}  // namespace topoopt
