// Collectives of a group over circuits that move.
//
// Every member reports its call and is notified whether circuits move (circuit_client.h). If so,
// each topology has its own schedule, and all members finish it before the next one: no data is in
// flight while circuits are dark. So if circuits do not come up, the collective fails at the same
// place on all members, and the group continues with the next call.
//
// A call that is short on the plan's circuits is not reported: moves take longer. All members
// predict the same time. Such a call starts when circuits lead to all members.
//
// Circuits may also be lost while chunks travel. Chunks have their own channel, which is then
// closed, so late chunks cannot reach a later operation. The service detects most losses; a member
// whose chunks are not acknowledged reports the others.

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "collectives/links/link_group.h"
#include "common/errors.h"

namespace topoopt {
namespace {

// Checks of watchProgress(): 5 s, longer than acknowledgements wait in queues.
constexpr int kMostSilentLooks = 25;

}  // namespace

bool LinkGroup::asksForCircuits(const Pending& pending) const {
  if (!config_.circuits) return false;
  const CircuitClient::Requested& requested = config_.circuits->requested();
  switch (pending.shape.collective) {
    case Collective::kExchange: {
      const CallName name = pending.called.name;
      const bool exchanges = name == CallName::kAllToAll || name == CallName::kAllToAllSingle;
      return exchanges && requested.exchanges && layout().mostOthers() == 0;
    }
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kBroadcast:
      return requestOf(pending.shape).bytes > 0 && pending.planned_s >= requested.least_s;
    default:
      return false;
  }
}

const GroupLayout& LinkGroup::layout() const { return versions_.at(0).schedules->layout(); }

// Of all blocks, if each were as large as the largest one of a server: circuits wait for it.
size_t LinkGroup::bytesOnCircuits(const ScheduleKey& shape) const {
  if (shape.counts.size() == 1) return shape.counts[0] * shape.element_bytes;
  std::vector<size_t> counts(layout().leaders().size(), 0);
  for (int member = 0; member < size(); ++member) {
    counts[layout().placeOf(member)] += shape.counts[member];
  }
  return *std::max_element(counts.begin(), counts.end()) * counts.size() * shape.element_bytes;
}

void LinkGroup::askForCircuits() {
  const Pending& pending = queue_.front();
  const uint64_t number = pending.number;
  moving_ = Moving{.number = number};
  // A failed group leaves the service and gets no more callbacks.
  const CircuitClient::CircuitAnswers answers{
      .stay = [this] { onCircuitsStay(); },
      .move = [this](const CircuitClient::MoveAnswer& move) { onCircuitsMove(move); },
      .moved = [this](size_t topology) { onCircuitsMoved(topology); },
      .stopped = [this](const std::string& why) { onCircuitsStopped(why); }};
  const ScheduleKey& shape = pending.shape;
  const CircuitClient::Members members{config_.ranks, config_.servers};
  if (shape.collective == Collective::kExchange) {
    return config_.circuits->request(config_.channel, number, members, shape.counts, answers);
  }
  config_.circuits->request(
      config_.channel, number, members,
      {nameOf(shape.collective), bytesOnCircuits(shape), pending.called.hash, pending.planned_s},
      answers);
}

void LinkGroup::onCircuitsStay() {
  moving_.reset();
  stayed_ = true;
  startOperation();
}

std::vector<Schedule> LinkGroup::schedulesOn(const CircuitClient::MoveAnswer& move) const {
  const int part = partsOf(layout()).direct;
  if (!move.blocks) return circuitSchedules(*move.program, config_.rank, move.bytes, part);
  return circuitCollectiveSchedules(*move.blocks, layout(), config_.rank, queue_.front().shape,
                                    part);
}

// Checks the others' send sizes of an all-to-all against this member's receive sizes here, because
// relays know only the former.
void LinkGroup::onCircuitsMove(const CircuitClient::MoveAnswer& move) {
  Pending& pending = queue_.front();
  const CircuitClient::Bytes& bytes = move.bytes;
  for (int member = 0; member < size() && move.program; ++member) {
    const size_t sent = bytes[member][config_.rank];
    const size_t expected = pending.shape.received[member];
    if (member == config_.rank || sent == expected) continue;
    const std::string why = disagreement(
        PairExchange{config_.ranks[member], sent, config_.ranks[config_.rank], expected},
        pending.called, pending.number, config_.name);
    return fail(std::make_exception_ptr(MismatchError(why)), Notify::kAllRanks);
  }
  try {
    for (Schedule& schedule : schedulesOn(move)) {
      moving_->parts.push_back(std::make_shared<const PreparedSchedule>(
          topoopt::prepare(Algorithm::kDirect, std::move(schedule))));
    }
  } catch (const std::invalid_argument& error) {
    return fail(std::make_exception_ptr(
                    MismatchError(std::string("the schedule is wrong: ") + error.what())),
                Notify::kAllRanks);
  }
  size_t scratch_bytes = 0;
  for (const auto& prepared : moving_->parts) scratch_bytes = prepared->schedule.scratch_bytes;
  pending.setup.scratch = scratch_.reserve(scratch_bytes);
  pending.setup.channel = move.channel;
  openCircuitChannel(move.channel);
  moving_->chosen = true;
  readyWhenQuiet();
}

void LinkGroup::readyWhenQuiet() {
  const uint64_t number = moving_->number;
  const size_t topology = moving_->topology;
  config_.circuits->ready(config_.channel, number, topology,
                          [this, weak = weak_from_this(), number, topology] {
                            const auto self = weak.lock();
                            return self && moving_ && moving_->number == number && !moving_->runs &&
                                   moving_->topology == topology;
                          });
}

void LinkGroup::onCircuitsMoved(size_t topology) {
  if (!moving_ || !moving_->chosen || moving_->runs || topology != moving_->topology) return;
  if (topology == moving_->parts.size()) {
    config_.circuits->finished(config_.channel);
    moving_.reset();
    return endFirst(nullptr);
  }
  moving_->runs = true;
  moving_->silent.clear();
  Operation::Setup setup = queue_.front().setup;
  setup.prepared = moving_->parts[topology];
  for (const Lane& lane : setup.prepared->schedule.lanes) {
    if (lane.part == kInsideServer) continue;
    for (const Send& send : lane.sends) moving_->silent[config_.ranks[send.peer]] = 0;
  }
  operation_.start(std::move(setup));
}

// May run inside start().
void LinkGroup::endTopology() {
  moving_->runs = false;
  ++moving_->topology;
  readyWhenQuiet();
}

// Runs periodically while a collective runs.
void LinkGroup::watchCircuits() {
  if (!moving_ || !moving_->runs) return;
  for (auto& [rank, looks] : moving_->silent) {
    looks = endpoint_->answers(rank) ? 0 : looks + 1;
    if (looks != kMostSilentLooks) continue;
    config_.circuits->lost(
        config_.channel, moving_->number,
        "rank " + std::to_string(rank) + " acknowledges nothing of what this rank sends it");
  }
}

void LinkGroup::onCircuitsStopped(const std::string& why) {
  if (!moving_) return;
  const Pending& pending = queue_.front();
  if (moving_->runs) operation_.cancel();
  if (moving_->chosen) closeCircuitChannel(why);
  moving_.reset();
  const auto error = std::make_exception_ptr(
      AbortedError(textOf(pending.called, config_.ranks) + " (operation " +
                   std::to_string(pending.number) + " of group " + config_.name + "): " + why));
  endFirst(error);
}

void LinkGroup::openCircuitChannel(uint32_t channel) {
  if (circuit_channel_ == channel) return;
  closeCircuitChannel("another one follows");
  circuit_channel_ = channel;
  endpoint_->openChannel(channel,
                         {.failed = [this, weak = weak_from_this()](std::exception_ptr error) {
                           if (const auto self = weak.lock()) fail(error, Notify::kAllRanks);
                         }});
}

void LinkGroup::closeCircuitChannel(const std::string& why) {
  if (circuit_channel_) endpoint_->closeChannel(*std::exchange(circuit_channel_, {}), why);
}

void LinkGroup::leaveCircuits(const std::string& why) {
  closeCircuitChannel(why);
  // Collectives that wait until circuits may move must not wait for this group.
  if (std::exchange(stayed_, false)) {
    config_.circuits->done(config_.channel, queue_.front().number);
  }
  if (!moving_) return;
  config_.circuits->leave(config_.channel, moving_->number, why);
  moving_.reset();
}

}  // namespace topoopt
