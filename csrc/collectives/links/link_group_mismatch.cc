// Detects members of a group over links that have called different collectives.

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/links/link_group.h"
#include "common/errors.h"

namespace topoopt {
namespace {

// A collective that stalls for one to two of these periods is compared with the others'.
constexpr std::chrono::milliseconds kStandstill{200};
// A member with a call of that number answers at once, by failing the group.
constexpr std::chrono::seconds kAnswerLimit{1};
constexpr size_t kExchangesKept = 8;

constexpr uint64_t kNotSaid = UINT64_MAX;

}  // namespace

std::optional<std::pair<Called, uint64_t>> LinkGroup::current() {
  if (!running_) return std::nullopt;
  return std::pair(queue_.front().called, queue_.front().number);
}

void LinkGroup::remember(uint64_t number, const CollectiveRequest& request) {
  history_.add(number, request.called);
  if (request.shape.collective != Collective::kExchange) return;
  exchanged_.push_back({number, request.shape.counts});
  if (exchanged_.size() > kExchangesKept) exchanged_.pop_front();
}

// One timer serves many operations: when it fires, it checks whether the running one has advanced.
void LinkGroup::watchProgress() {
  progress_timer_ = endpoint_->reactor().after(kStandstill, [this] {
    progress_timer_.reset();
    if (!running_) return;  // the next operation starts the timer
    watchCircuits();
    const std::pair seen(queue_.front().number, operation_.progress());
    if (std::exchange(progress_seen_, seen) == seen) onStandstill();
    if (!progress_timer_) watchProgress();
  });
}

void LinkGroup::onStandstill() {
  const Pending& pending = queue_.front();
  std::set<int> waiting = operation_.waitingFor();
  if (moving_ && !moving_->chosen) {  // the service answers only when all members have requested
    if (config_.circuits->circuitsMove()) return;  // it may wait for its turn
    waiting = {config_.ranks.begin(), config_.ranks.end()};
    waiting.erase(config_.ranks[config_.rank]);
  }
  for (const int rank : waiting) {
    sendCall(rank, pending.number, pending.called, expectedFrom(rank, pending.number));
  }
}

// Returns the bytes expected in exchange `number`, if that is the running operation.
uint64_t LinkGroup::expectedFrom(int rank, uint64_t number) const {
  if (!running_) return kNotSaid;
  const Pending& pending = queue_.front();
  if (pending.number != number || pending.shape.received.empty()) return kNotSaid;
  return pending.shape.received[memberOf(rank)];
}

void LinkGroup::sendCall(int rank, uint64_t number, const Called& called, uint64_t expected_bytes) {
  FrameHeader header;
  header.type = FrameType::kCall;
  header.channel = config_.channel;
  header.message = number;
  header.message_bytes = expected_bytes;
  endpoint_->sendControl(rank, header, {reinterpret_cast<const char*>(&called), sizeof called});
}

void LinkGroup::onControl(const FrameHeader& header, const std::string& payload) {
  if (agreement_.onControl(header, payload)) return;
  if (header.type == FrameType::kSizes) {
    if (memberOf(header.source) >= 0) sizes_.onSizes(header, payload);
    return;
  }
  if (header.type != FrameType::kCall) {
    if (header.type == FrameType::kStateRequest) last_state_request_ = Reactor::Clock::now();
    return Group::onControl(header, payload);
  }
  Called theirs;
  if (payload.size() != sizeof theirs) return;
  std::memcpy(&theirs, payload.data(), sizeof theirs);
  if (isValid(theirs) && memberOf(header.source) >= 0) onCall(header, theirs);
}

// Handles another member's call: that member waits for this one, or got an unexpected frame.
void LinkGroup::onCall(const FrameHeader& header, const Called& theirs) {
  const int own = config_.ranks[config_.rank];
  const int peer = header.source;
  std::optional<Called> mine;
  std::optional<size_t> sent;
  {
    std::lock_guard lock(mutex_);
    mine = history_.at(header.message);
    for (const Exchanged& exchange : exchanged_) {
      if (exchange.number == header.message) sent = exchange.bytes[memberOf(peer)];
    }
  }
  if (!mine) return;  // not called yet, or too long ago
  std::string why;
  if (mine->hash != theirs.hash) {
    why = disagreement({own, *mine}, {peer, theirs}, config_.ranks, header.message, config_.name);
  } else if (header.message_bytes != kNotSaid && sent && *sent != header.message_bytes) {
    why = disagreement(PairExchange{own, *sent, peer, header.message_bytes}, *mine, header.message,
                       config_.name);
  } else {
    return;
  }
  fail(std::make_exception_ptr(MismatchError(why)), Notify::kAllRanks);
}

void LinkGroup::onMismatch(const MessageMismatch& mismatch) {
  if (queue_.empty()) return;  // the group has failed
  const uint32_t sent = callNumberOf(mismatch.sent.fingerprint);
  const uint32_t expected = callNumberOf(mismatch.expected.fingerprint);
  if (mismatch.sent.fingerprint == mismatch.expected.fingerprint) {
    const Pending& pending = queue_.front();
    const std::string why =
        disagreement(PairExchange{mismatch.sender, mismatch.sent.bytes, config_.ranks[config_.rank],
                                  mismatch.expected.bytes},
                     pending.called, pending.number, config_.name);
    return fail(std::make_exception_ptr(MismatchError(why)), Notify::kAllRanks);
  }
  // Uses the earlier of the two calls, because both members have made it.
  dispute(mismatch.sender, static_cast<int32_t>(sent - expected) < 0 ? sent : expected);
}

void LinkGroup::onUnmatched(int peer, uint32_t number) { dispute(peer, number); }

// Frames carry the low 32 bits of a number; find the full one among the calls.
void LinkGroup::dispute(int peer, uint32_t low_number) {
  if (dispute_timer_) return;
  uint64_t number;
  std::optional<Called> mine;
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    number = called_ - static_cast<uint32_t>(static_cast<uint32_t>(called_) - low_number);
    mine = history_.at(number);
  }
  std::string why = "rank " + std::to_string(peer) + " and rank " +
                    std::to_string(config_.ranks[config_.rank]) + " disagree about operation " +
                    std::to_string(number) + " of group " + config_.name;
  if (mine) {
    why += ": rank " + std::to_string(config_.ranks[config_.rank]) + " called " +
           textOf(*mine, config_.ranks) + ", of which a message of the other is no part";
    sendCall(peer, number, *mine, expectedFrom(peer, number));
  }
  dispute_timer_ =
      endpoint_->reactor().after(mine ? kAnswerLimit : std::chrono::seconds(0), [this, why] {
        dispute_timer_.reset();
        fail(std::make_exception_ptr(MismatchError(why)), Notify::kAllRanks);
      });
}

}  // namespace topoopt
