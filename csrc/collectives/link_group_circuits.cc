// All-to-alls of a group over circuits that move.
//
// Every member says what it sends, and is told whether circuits move for it (circuit_client.h). If
// so, each topology has a schedule of its own, and between two of them all members have all that
// the first one brings: nothing is on its way while circuits are dark. So an all-to-all whose
// circuits do not come up ends with an error at the same place on all members, and the group goes
// on with what comes next.

#include <stdexcept>
#include <utility>

#include "collectives/link_group.h"
#include "common/errors.h"

namespace topoopt {

bool LinkGroup::asksForCircuits(const Pending& pending) const {
  const CallName name = pending.called.name;
  return config_.circuits && (name == CallName::kAllToAll || name == CallName::kAllToAllSingle);
}

void LinkGroup::askForCircuits() {
  const Pending& pending = queue_.front();
  const uint64_t number = pending.number;
  moving_ = Moving{.number = number};
  // A group that fails leaves, and is called no more.
  config_.circuits->ask(
      config_.channel, number, pending.shape.counts,
      {.stay = [this] { onCircuitsStay(); },
       .move = [this](const std::shared_ptr<const CircuitProgram>& program,
                      const CircuitClient::Bytes& bytes) { onCircuitsMove(*program, bytes); },
       .moved = [this](size_t topology) { onCircuitsMoved(topology); },
       .stopped = [this](const std::string& why) { onCircuitsStopped(why); }});
}

void LinkGroup::onCircuitsStay() {
  moving_.reset();
  Operation::Setup setup = std::move(queue_.front().setup);
  setup.scratch = scratch_.reserve(setup.prepared->schedule.scratch_bytes);
  operation_.start(std::move(setup));
}

// What others say that they send must be what this member receives: it is found here, for relays
// know only what is said.
void LinkGroup::onCircuitsMove(const CircuitProgram& program, const CircuitClient::Bytes& bytes) {
  Pending& pending = queue_.front();
  for (int member = 0; member < size(); ++member) {
    const size_t sent = bytes[member][config_.rank];
    const size_t expected = pending.shape.received[member];
    if (member == config_.rank || sent == expected) continue;
    const std::string why =
        disagreement(Transfer{config_.ranks[member], sent, config_.ranks[config_.rank], expected},
                     pending.called, pending.number, config_.name);
    return fail(std::make_exception_ptr(MismatchError(why)), Notify::kAllRanks);
  }
  const int part = partsOf(versions_.at(0).schedules->layout()).direct;
  try {
    for (Schedule& schedule : circuitSchedules(program, config_.rank, bytes, part)) {
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
  moving_->chosen = true;
  endpoint_->holdCables();
  config_.circuits->ready(config_.channel, moving_->number, 0);
}

void LinkGroup::onCircuitsMoved(size_t topology) {
  if (!moving_ || !moving_->chosen || moving_->runs || topology != moving_->topology) return;
  if (topology == moving_->parts.size()) {
    endpoint_->letCablesGo();
    config_.circuits->finished(config_.channel);
    moving_.reset();
    return endFirst(nullptr);
  }
  moving_->runs = true;
  Operation::Setup setup = queue_.front().setup;
  setup.prepared = moving_->parts[topology];
  operation_.start(std::move(setup));
}

// Perhaps from inside of start().
void LinkGroup::endTopology() {
  moving_->runs = false;
  ++moving_->topology;
  config_.circuits->ready(config_.channel, moving_->number, moving_->topology);
}

void LinkGroup::onCircuitsStopped(const std::string& why) {
  if (!moving_) return;
  const Pending& pending = queue_.front();
  const bool waits = !moving_->runs;
  if (moving_->chosen) endpoint_->letCablesGo();
  moving_.reset();
  const auto error = std::make_exception_ptr(
      AbortedError(textOf(pending.called, config_.ranks) + " (operation " +
                   std::to_string(pending.number) + " of group " + config_.name + "): " + why));
  // What is on its way would be taken for a part of what comes next.
  if (!waits) return fail(error, Notify::kAllRanks);
  endFirst(error);
}

void LinkGroup::leaveCircuits(const std::string& why) {
  if (!moving_) return;
  if (moving_->chosen) endpoint_->letCablesGo();
  config_.circuits->leave(config_.channel, moving_->number, why);
  moving_.reset();
}

}  // namespace topoopt
