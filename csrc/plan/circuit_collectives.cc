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

bool perMember(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter;
}

std::string textOf(const BlockHop& hop) {
  return "block " + std::to_string(hop.block) + " of part " + std::to_string(hop.part);
}

// A program of servers as one of members: leaders send in place of their servers, and a block of
// each member takes the place of a server's block.
class MemberProgram {
 public:
  MemberProgram(const BlockProgram& program, const GroupLayout& layout, const ScheduleKey& key)
      : program_(program),
        layout_(layout),
        key_(key),
        servers_(static_cast<int>(layout.leaders().size())) {}

  BlockProgram build() {
    check();
    made_ = {program_.parts, perMember(key_.collective) ? layout_.size() : program_.blocks, {}};
    for (const auto& hops : program_.topologies) {
      auto& own = made_.topologies.emplace_back();
      for (const BlockHop& hop : hops) add(own, hop);
    }
    if (made_.topologies.empty()) return std::move(made_);
    std::vector<BlockHop> inwards;
    std::vector<BlockHop> outwards;
    for (const int leader : layout_.leaders()) {
      if (layout_.othersOf(leader).empty()) continue;
      addInwards(inwards, leader);
      addOutwards(outwards, leader);
    }
    auto& first = made_.topologies.front();
    first.insert(first.begin(), inwards.begin(), inwards.end());
    auto& last = made_.topologies.back();
    last.insert(last.end(), outwards.begin(), outwards.end());
    return std::move(made_);
  }

 private:
  void check() const {
    const bool per_member = perMember(key_.collective);
    const auto expected = static_cast<size_t>(per_member ? layout_.size() : 1);
    if (key_.counts.size() != expected) throw std::invalid_argument("counts: there are too many");
    if (program_.parts < 1 ||
        (program_.blocks != servers_ && (per_member || program_.blocks != 1))) {
      throw std::invalid_argument("there are " + std::to_string(program_.blocks) + " blocks in " +
                                  std::to_string(program_.parts) + " parts");
    }
    for (const auto& hops : program_.topologies) {
      for (const BlockHop& hop : hops) check(hop);
    }
  }

  void check(const BlockHop& hop) const {
    for (const int server : {hop.sender, hop.receiver}) {
      if (server < 0 || server >= servers_) {
        throw std::invalid_argument("there is no member " + std::to_string(server));
      }
    }
    if (hop.block < 0 || hop.block >= program_.blocks || hop.part < 0 ||
        hop.part >= program_.parts) {
      throw std::invalid_argument("there is no " + textOf(hop));
    }
    const bool scatters = key_.collective == Collective::kReduceScatter;
    const bool adds = key_.collective == Collective::kAllReduce || scatters;
    if (hop.sender == hop.receiver || (hop.reduces && !adds) || (!hop.reduces && scatters)) {
      throw std::invalid_argument("member " + std::to_string(hop.sender) + " may not send " +
                                  textOf(hop) + " to member " + std::to_string(hop.receiver));
    }
  }

  int leaderAt(int server) const {
    const int shift = key_.collective == Collective::kBroadcast ? layout_.placeOf(key_.root) : 0;
    return layout_.leaders()[(server + shift) % servers_];
  }

  void add(std::vector<BlockHop>& hops, BlockHop hop) const {
    hop.sender = leaderAt(hop.sender);
    hop.receiver = leaderAt(hop.receiver);
    if (!perMember(key_.collective)) return hops.push_back(hop);
    const int leader = layout_.leaders()[hop.block];
    hop.block = leader;
    hops.push_back(hop);
    for (const int other : layout_.othersOf(leader)) {
      hop.block = other;
      hops.push_back(hop);
    }
  }

  // All blocks of all parts, in the order in which the leader uses them on a topology: the first
  // use of each, or with `last` the last one. Those that it does not use are the last, or the
  // first.
  std::vector<BlockHop> blocksOf(int leader, const std::vector<BlockHop>& hops, bool last) const {
    std::vector<BlockHop> used;
    for (const BlockHop& hop : hops) {
      if (hop.sender == leader || hop.receiver == leader) used.push_back(hop);
    }
    if (last) std::reverse(used.begin(), used.end());
    std::vector<bool> known(static_cast<size_t>(made_.parts) * made_.blocks, false);
    std::vector<BlockHop> found;
    const auto take = [&](const BlockHop& hop) {
      std::vector<bool>::reference entry =
          known[static_cast<size_t>(hop.part) * made_.blocks + hop.block];
      if (!entry) found.push_back({-1, -1, hop.block, hop.part, false});
      entry = true;
    };
    std::for_each(used.begin(), used.end(), take);
    for (int part = 0; part < made_.parts; ++part) {
      for (int block = 0; block < made_.blocks; ++block) take({-1, -1, block, part, false});
    }
    if (last) std::reverse(found.begin(), found.end());
    return found;
  }

  void addInwards(std::vector<BlockHop>& hops, int leader) const {
    const bool adds =
        key_.collective == Collective::kAllReduce || key_.collective == Collective::kReduceScatter;
    for (const BlockHop& hop : blocksOf(leader, made_.topologies.front(), false)) {
      for (const int other : layout_.othersOf(leader)) {
        const bool own =
            key_.collective == Collective::kAllGather ? hop.block == other : key_.root == other;
        if (!adds && !own) continue;
        hops.push_back({other, leader, hop.block, hop.part, adds});
      }
    }
  }

  void addOutwards(std::vector<BlockHop>& hops, int leader) const {
    for (const BlockHop& hop : blocksOf(leader, made_.topologies.back(), true)) {
      for (const int other : layout_.othersOf(leader)) {
        if (!needs(other, hop.block)) continue;
        hops.push_back({leader, other, hop.block, hop.part, false});
      }
    }
  }

  // Whether a member that does not lead gets the block from its leader.
  bool needs(int member, int block) const {
    switch (key_.collective) {
      case Collective::kReduceScatter:
        return block == member;
      case Collective::kAllGather:
        return block != member;
      case Collective::kBroadcast:
        return key_.root != member;
      default:
        return true;
    }
  }

  const BlockProgram& program_;
  const GroupLayout& layout_;
  const ScheduleKey& key_;
  const int servers_;
  BlockProgram made_;
};

class BlockSchedules {
 public:
  BlockSchedules(const BlockProgram& program, const GroupLayout& layout, int rank,
                 const ScheduleKey& key, int counter)
      : program_(MemberProgram(program, layout, key).build()),
        layout_(layout),
        key_(key),
        rank_(rank),
        counter_(counter),
        starts_(blockStarts(key.counts)),
        states_(static_cast<size_t>(program_.parts) * program_.blocks) {
    for (const auto& hops : program_.topologies) {
      for (const BlockHop& hop : hops) {
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

  State& stateOf(const BlockHop& hop) { return states_[indexOf(hop)]; }
  size_t indexOf(const BlockHop& hop) const {
    return static_cast<size_t>(hop.part) * program_.blocks + hop.block;
  }

  // Chunk `chunk` of `chunks` of a block, in the memory of the caller that has whole messages.
  Range rangeOf(const BlockHop& hop, size_t chunk, size_t chunks) const {
    const bool per_member = perMember(key_.collective);
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

  // One lane per neighbour, so that neighbours do not wait for each other's chunks.
  int laneTo(int peer) {
    const auto [entry, added] = lanes_.try_emplace(peer, 0);
    if (added) {
      const bool inside = layout_.placeOf(peer) == layout_.placeOf(rank_);
      entry->second = addLane(schedule_, 0, inside ? kInsideServer : counter_);
    }
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
    return stateOf(hop).present || isOwn(hop) || key_.collective == Collective::kAllReduce ||
           scatters();
  }

  // A block that nobody sends to this member.
  bool isOwn(const BlockHop& hop) const {
    if (gathers()) return hop.block == rank_;
    return key_.collective == Collective::kBroadcast && rank_ == key_.root;
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
      addSend(schedule_, lane, hop.receiver, from, state.received[chunk]);
    }
  }

  void receive(const BlockHop& hop) {
    State& state = stateOf(hop);
    if (!hop.reduces && (state.present || isOwn(hop))) {
      throw std::invalid_argument("member " + std::to_string(rank_) + " gets " + textOf(hop) +
                                  " twice");
    }
    const int lane = laneTo(hop.sender);
    for (size_t chunk = 0; chunk < chunks_; ++chunk) {
      const Range own = rangeOf(hop, chunk, chunks_);
      if (own.bytes == 0) continue;
      Receive step;
      step.peer = hop.sender;
      step.into = own;
      if (hop.reduces) {
        add(hop, lane, own, chunk, step);
      } else {
        if (scatters()) step.into = sumOf(hop, own);
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
        if (gathers()) complete = complete || isOwn(hop);
        if (scatters()) complete = complete || block != rank_;
        if (key_.collective == Collective::kBroadcast) complete = complete || isOwn(hop);
        if (!complete && layout_.size() > 1) {
          throw std::invalid_argument(textOf(hop) + " never arrives at member " +
                                      std::to_string(rank_));
        }
      }
    }
  }

  const BlockProgram program_;  // of members
  const GroupLayout& layout_;
  const ScheduleKey& key_;
  const int rank_;
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

std::vector<Schedule> circuitCollectiveSchedules(const BlockProgram& program,
                                                 const GroupLayout& layout, int rank,
                                                 const ScheduleKey& key, int counter) {
  return BlockSchedules(program, layout, rank, key, counter).build();
}

}  // namespace topoopt
