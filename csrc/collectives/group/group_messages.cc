// Point-to-point messages of a group.

#include <algorithm>
#include <utility>

#include "collectives/group/group.h"
#include "common/errors.h"

namespace topoopt {
namespace {

uint64_t tagStream(int tag) { return kFirstMessageStream + static_cast<uint32_t>(tag); }

// The element type; sizes are compared anyway.
uint64_t fingerprintOf(const MessageBuffer& message) { return static_cast<uint64_t>(message.type); }

std::string textOf(const MessageMismatch::Side& side) {
  constexpr auto kLast = static_cast<uint64_t>(DataType::kBytes);
  return textOf(side.bytes, static_cast<DataType>(std::min(side.fingerprint, kLast)));
}

}  // namespace

void Group::pointToPoint(PendingMessages::Message message, std::function<void(Done)> start) {
  endpoint_->reactor().post([self = shared_from_this(), message = std::move(message),
                             start = std::move(start)]() mutable {
    if (const auto error = self->error()) return message.done(error);
    const int tag = message.tag;
    const uint64_t number =
        self->messages_.add(std::move(message), [weak = self->weak_from_this()](uint64_t late) {
          if (const auto group = weak.lock()) group->onMessageLate(late);
        });
    start([self, number, tag](std::exception_ptr error) {
      if (error) return self->failSoon(self->withBothCalls(error, tag));
      self->messages_.finish(number);
    });
  });
}

// Requests the peer's state; a receive from any rank has no peer.
void Group::onMessageLate(uint64_t number) {
  const PendingMessages::Message& message = *messages_.find(number);
  failLate(message.peers.size() == 1 ? message.peers : std::vector<int>(), message.text,
           message.limit, [this, number] { return messages_.find(number) == nullptr; });
}

void Group::failLate(const std::vector<int>& ranks, const std::string& what, Milliseconds limit,
                     std::function<bool()> over) {
  surveys_.request(ranks, [this, what, limit, over](const StateSurveys::Answers& answers) {
    if (over()) return;
    std::string why = what + " in group " + config_.name + ": Timed out after " +
                      std::to_string(limit.count()) + " ms";
    for (const auto& [rank, answer] : answers) {
      why += ": rank " + std::to_string(rank) + " " + (answer ? answer->state : "does not answer");
    }
    fail(std::make_exception_ptr(TimeoutError(why)), Notify::kAllRanks);
  });
}

std::exception_ptr Group::withBothCalls(std::exception_ptr error, int tag) const {
  try {
    std::rethrow_exception(error);
  } catch (const MessageMismatch& mismatch) {
    const std::string sender = "rank " + std::to_string(mismatch.sender);
    const std::string receiver = "rank " + std::to_string(config_.ranks[config_.rank]);
    return std::make_exception_ptr(MismatchError(
        sender + " and " + receiver + " disagree: " + sender + " sent " + textOf(mismatch.sent) +
        ", " + receiver + " receives " + textOf(mismatch.expected) + " (tag " +
        std::to_string(tag) + ", group " + config_.name + ")"));
  } catch (const std::exception&) {
    return error;
  }
}

void Group::send(const MessageBuffer& message, int target, int tag, const CallTerms& terms,
                 Done done) {
  const FlowId flow{config_.ranks[target], config_.channel, tagStream(tag)};
  pointToPoint({.text = "send to rank " + std::to_string(flow.peer),
                .peers = {flow.peer},
                .tag = tag,
                .limit = terms.limit,
                .done = std::move(done)},
               [this, flow, message, target](Done finished) {
                 startSend(flow, message, target, std::move(finished));
               });
}

// When circuits lead to the target.
void Group::startSend(const FlowId& flow, const MessageBuffer& message, int target, Done finished) {
  const auto start = [this, flow, message](Done done) {
    endpoint_->send(flow, message.data, message.bytes, fingerprintOf(message), std::move(done));
  };
  CircuitClient* const circuits = config_.circuits.get();
  if (!circuits || config_.servers[target] == config_.servers[config_.rank]) {
    return start(std::move(finished));
  }
  const uint64_t sending = circuits->begin({config_.servers[target]});
  sending_.insert(sending);
  circuits->start(sending, [this, start, sending, finished = std::move(finished)] {
    start([this, sending, finished](std::exception_ptr error) {
      endSend(sending);
      finished(error);
    });
  });
}

void Group::endSend(uint64_t sending) {
  if (sending_.erase(sending) > 0) config_.circuits->end(sending);
}

void Group::receive(const MessageBuffer& message, int source, int tag, const CallTerms& terms,
                    Done done) {
  const FlowId flow{config_.ranks[source], config_.channel, tagStream(tag)};
  pointToPoint({.text = "receive from rank " + std::to_string(flow.peer),
                .peers = {flow.peer},
                .tag = tag,
                .limit = terms.limit,
                .done = std::move(done)},
               [this, flow, message](Done finished) {
                 endpoint_->receive(flow, message.data, message.bytes, fingerprintOf(message),
                                    std::move(finished));
               });
}

void Group::receiveAny(const MessageBuffer& message, int tag, const CallTerms& terms,
                       std::function<void(int)> from, Done done) {
  std::vector<int> peers = config_.ranks;
  std::erase(peers, config_.ranks[config_.rank]);
  pointToPoint(
      {.text = "receive from any rank",
       .peers = peers,
       .tag = tag,
       .limit = terms.limit,
       .done = std::move(done)},
      [this, peers, stream = tagStream(tag), message, from = std::move(from)](Done finished) {
        endpoint_->receiveAny(
            peers, config_.channel, stream, message.data, message.bytes, fingerprintOf(message),
            [this, from](int peer) { from(memberOf(peer)); }, std::move(finished));
      });
}

}  // namespace topoopt
