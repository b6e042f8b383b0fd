#include "collectives/shared_memory_group.h"

#include <utility>

namespace topoopt {

SharedMemoryGroup::SharedMemoryGroup(std::shared_ptr<Endpoint> endpoint, GroupConfig config)
    : Group(std::move(endpoint), std::move(config)),
      layout_(size(), config_.rings, config_.servers, config_.hops),
      team_(std::make_shared<TeamSegment>(config_.segment_fd, size()), config_.rank, config_.ranks,
            config_.name) {}

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
          const std::exception_ptr before = this->error();  // what made the team stop, if known
          if (before) return done(before);
          // At once: the caller that gets this error finds the team failed. The first member that
          // fails notifies the others.
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
  const auto& [collective, counts, received, element_bytes, root, commutative] = request.shape;
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
    case Collective::kExchange:
      return team_.exchange(call, input, counts, output, received);
    case Collective::kBarrier:
      return team_.barrier(call);
  }
}

std::optional<std::pair<Called, uint64_t>> SharedMemoryGroup::current() {
  const auto last = team_.lastCall();
  if (!last || !running_.load(std::memory_order_relaxed)) return std::nullopt;
  return std::pair(last->called, last->number);
}

// Operations complete on their own threads, which the end of the team stops.
void SharedMemoryGroup::endCollectives(std::exception_ptr error, Notify notify) {
  const std::string why = whatFailed(error);
  if (notify == Notify::kShutdown) {
    team_.leave();
  } else {
    team_.fail(notify == Notify::kAllRanks ? ownFailure(why) : why);
  }
  closeChannel(why, notify);
}

void SharedMemoryGroup::shutdown() {
  Group::shutdown();
  turns_.stop();
}

std::string SharedMemoryGroup::ownFailure(const std::string& why) const {
  return "rank " + std::to_string(config_.ranks[config_.rank]) + " failed: " + why;
}

// What goes through memory is not counted.
std::vector<RingCounters> SharedMemoryGroup::counters() {
  std::vector<RingCounters> list;
  addCounters(list, layout_, {});
  return list;
}

}  // namespace topoopt
