#include "collectives/memory/shared_memory_group.h"

#include <utility>

namespace topoopt {

SharedMemoryGroup::SharedMemoryGroup(std::shared_ptr<Endpoint> endpoint, GroupConfig config)
    : Group(std::move(endpoint), std::move(config)),
      layout_(size(), config_.rings, config_.servers, config_.hops),
      segment_(std::make_shared<TeamSegment>(config_.segment_fd, size())),
      team_(segment_, config_.rank, config_.ranks, config_.name),
      messages_(segment_->messages(), config_.rank, config_.ranks, endpoint_->limits().early_peer,
                hooks()) {}

void SharedMemoryGroup::submit(CollectiveRequest request, const CallTerms& terms, Done done) {
  turns_.submit(
      [this, self = shared_from_this(), request = std::move(request), limit = terms.limit,
       done = std::move(done)](uint64_t number) {
        if (const auto error = this->error()) return done(error);
        try {
          running_.store(true, std::memory_order_relaxed);
          run(request, {request.called, number, limit});
          running_.store(false, std::memory_order_relaxed);
        } catch (const std::exception& exception) {
          const std::exception_ptr here = std::current_exception();
          const std::exception_ptr before = this->error();  // why the team stopped, if known
          if (before) return done(before);
          // Fail the team at once, because the caller that gets this error may check it. Only the
          // first failing member notifies the others.
          const bool first = team_.fail(ownFailure(exception.what()));
          failSoon(here, first ? Notify::kAllRanks : Notify::kNoRank);
          return done(here);
        }
        done(nullptr);
      },
      terms.synchronous);
}

void SharedMemoryGroup::run(const CollectiveRequest& request, const CollectiveCall& call) {
  const auto& [input, output] = request.buffers;
  const auto& [collective, counts, of_exchange, element_bytes, root, commutative] = request.shape;
  switch (collective) {
    case Collective::kAllReduce:
      return team_.allReduce(call, input, counts[0], request.type, request.op);
    case Collective::kBroadcast:
      return team_.broadcast(call, input, counts[0], root);
    case Collective::kReduce:
      return team_.reduce(call, input, output, counts[0], request.type, request.op, root);
    case Collective::kAllGather:
      return team_.allGather(call, output, counts);
    case Collective::kReduceScatter:
      return team_.reduceScatter(call, input, output, counts, request.type, request.op);
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kExchange: {
      const auto [sent, received] = exchangedCounts(request.shape, config_.rank);
      return team_.exchange(call, input, sent, output, received);
    }
    case Collective::kBarrier:
      return team_.barrier(call);
  }
}

std::optional<std::pair<Called, uint64_t>> SharedMemoryGroup::current() {
  const auto last = team_.lastCall();
  if (!last || !running_.load(std::memory_order_relaxed)) return std::nullopt;
  return std::pair(last->called, last->number);
}

// Operations complete on their own threads, which stop with the team.
void SharedMemoryGroup::endCollectives(std::exception_ptr error, Notify notify) {
  const std::string why = whatFailed(error);
  if (notify == Notify::kShutdown) {
    team_.leave();
  } else {
    team_.fail(notify == Notify::kAllRanks ? ownFailure(why) : why);
  }
  closeChannel(why, notify);
  if (late_timer_) endpoint_->reactor().cancel(*std::exchange(late_timer_, std::nullopt));
  messages_.end(error, notify == Notify::kShutdown);
}

void SharedMemoryGroup::shutdown() {
  Group::shutdown();
  turns_.stop();
}

std::string SharedMemoryGroup::ownFailure(const std::string& why) const {
  return "rank " + std::to_string(config_.ranks[config_.rank]) + " failed: " + why;
}

// ---- messages ----------------------------------------------------------------------------------

void SharedMemoryGroup::send(const MessageBuffer& message, int target, int tag,
                             const CallTerms& terms, Done done) {
  if (const auto error = this->error()) return done(error);
  messages_.send(message, target, tag, terms, std::move(done));
}

void SharedMemoryGroup::receive(const MessageBuffer& message, int source, int tag,
                                const CallTerms& terms, Done done) {
  if (const auto error = this->error()) return done(error);
  messages_.receive(message, source, tag, terms, std::move(done));
}

void SharedMemoryGroup::receiveAny(const MessageBuffer& message, int tag, const CallTerms& terms,
                                   std::function<void(int)> from, Done done) {
  if (const auto error = this->error()) return done(error);
  messages_.receiveAny(message, tag, terms, std::move(from), std::move(done));
}

void SharedMemoryGroup::await(const std::function<bool()>& over,
                              std::optional<Reactor::Clock::time_point> until) {
  messages_.await(over, until);
}

LocalMessages::Hooks SharedMemoryGroup::hooks() {
  return {
      .notify = [this](int member) { notify(member); },
      .tick_soon =
          [this] {
            endpoint_->reactor().post(
                [self = shared_from_this(), this] { tickAfter(LocalMessages::kShortestTick); });
          },
      .fail = [this](std::exception_ptr error, int tag) { failSoon(withBothCalls(error, tag)); }};
}

void SharedMemoryGroup::notify(int member) {
  endpoint_->reactor().post([self = shared_from_this(), this, member] {
    if (member == rank()) return messages_.look();
    FrameHeader header;
    header.type = FrameType::kLook;
    header.channel = config_.channel;
    endpoint_->sendControl(config_.ranks[member], header, "");
  });
}

void SharedMemoryGroup::tickAfter(std::chrono::microseconds pause) {
  endpoint_->reactor().at(Reactor::Clock::now() + pause, [weak = weak_from_this()] {
    if (const auto group = std::static_pointer_cast<SharedMemoryGroup>(weak.lock())) {
      group->onTick();
    }
  });
}

void SharedMemoryGroup::onTick() {
  if (const auto pause = messages_.tick()) tickAfter(*pause);
  watchDeadline();
}

// One timer serves many messages: when it fires, it finds the late ones.
void SharedMemoryGroup::watchDeadline() {
  const auto deadline = messages_.deadline();
  if (!deadline || (late_timer_ && late_timer_->first <= *deadline)) return;
  if (late_timer_) endpoint_->reactor().cancel(*late_timer_);
  late_timer_ = endpoint_->reactor().at(*deadline, [weak = weak_from_this()] {
    if (const auto group = std::static_pointer_cast<SharedMemoryGroup>(weak.lock())) {
      group->late_timer_.reset();
      group->onLate();
    }
  });
}

// Requests the peer's state; a receive from any rank has no peer.
void SharedMemoryGroup::onLate() {
  for (const LocalMessages::Late& late : messages_.late(Reactor::Clock::now())) {
    std::vector<int> peers;
    if (late.member >= 0) peers.push_back(config_.ranks[late.member]);
    failLate(peers, late.what, late.limit,
             [this, number = late.number] { return !messages_.pending(number); });
  }
  watchDeadline();
}

void SharedMemoryGroup::onControl(const FrameHeader& header, const std::string& payload) {
  if (header.type == FrameType::kLook) return messages_.look();
  Group::onControl(header, payload);
}

void SharedMemoryGroup::onLeft(int rank) {
  const int member = memberOf(rank);
  if (member >= 0 && member != this->rank()) messages_.left(member);
}

// Traffic through memory is not counted.
std::vector<RingCounters> SharedMemoryGroup::counters() {
  std::vector<RingCounters> list;
  addCounters(list, layout_, {}, config_.ranks);
  return list;
}

}  // namespace topoopt
