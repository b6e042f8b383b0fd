// Point-to-point messages of a group.

#include <algorithm>
#include <utility>

#include "collectives/group.h"
#include "common/errors.h"

namespace topoopt {
namespace {

// Streams below this are the lanes of collectives, from here on the tags of point-to-point
// messages.
constexpr uint64_t kFirstTagStream = uint64_t{1} << 32;

uint64_t tagStream(int tag) { return kFirstTagStream + static_cast<uint32_t>(tag); }

}  // namespace

void Group::pointToPoint(std::string what, Milliseconds limit, Done done,
                         std::function<void(Done)> start) {
  endpoint_->reactor().post([self = shared_from_this(), what = std::move(what), limit,
                             done = std::move(done), start = std::move(start)]() mutable {
    if (const auto error = self->error()) return done(error);
    Reactor& reactor = self->endpoint_->reactor();
    const Entry entry = self->point_to_point_.insert(self->point_to_point_.end(),
                                                     {std::move(what), {}, std::move(done)});
    if (limit.count() > 0) {
      entry->timer = reactor.after(limit, [weak = self->weak_from_this(), entry, limit] {
        const auto group = weak.lock();
        if (!group) return;
        entry->timer.reset();
        const std::string why = entry->what + " in group " + group->config_.name +
                                ": Timed out after " + std::to_string(limit.count()) + " ms";
        group->fail(std::make_exception_ptr(TimeoutError(why)), Notify::kAllRanks);
      });
    }
    start([self, entry](std::exception_ptr error) {
      if (error) return self->failSoon(error);
      if (entry->timer) self->endpoint_->reactor().cancel(*entry->timer);
      const Done finished = std::move(entry->done);
      self->point_to_point_.erase(entry);
      finished(nullptr);
    });
  });
}

void Group::send(const void* data, size_t bytes, int target, int tag, Milliseconds limit,
                 Done done) {
  const FlowId flow{config_.ranks[target], config_.channel, tagStream(tag)};
  pointToPoint("send to rank " + std::to_string(target), limit, std::move(done),
               [this, flow, data, bytes](Done finished) {
                 endpoint_->send(flow, data, bytes, 0, std::move(finished));
               });
}

void Group::receive(void* data, size_t bytes, int source, int tag, Milliseconds limit, Done done) {
  const FlowId flow{config_.ranks[source], config_.channel, tagStream(tag)};
  pointToPoint("receive from rank " + std::to_string(source), limit, std::move(done),
               [this, flow, data, bytes](Done finished) {
                 endpoint_->receive(flow, data, bytes, 0, std::move(finished));
               });
}

void Group::receiveAny(void* data, size_t bytes, int tag, Milliseconds limit,
                       std::function<void(int)> from, Done done) {
  std::vector<int> peers = config_.ranks;
  std::erase(peers, config_.ranks[config_.rank]);
  pointToPoint(
      "receive from any rank", limit, std::move(done),
      [this, peers, stream = tagStream(tag), data, bytes, from = std::move(from)](Done finished) {
        endpoint_->receiveAny(
            peers, config_.channel, stream, data, bytes, 0,
            [this, from](int peer) {
              const auto at = std::find(config_.ranks.begin(), config_.ranks.end(), peer);
              from(static_cast<int>(at - config_.ranks.begin()));
            },
            std::move(finished));
      });
}

}  // namespace topoopt
