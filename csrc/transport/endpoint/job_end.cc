#include "transport/endpoint/job_end.h"

#include <algorithm>

namespace topoopt {
namespace {

// How long a rank that fails stays to broadcast why.
constexpr std::chrono::seconds kDeliveryLimit{2};
constexpr std::chrono::milliseconds kDeliveryInterval{1};

}  // namespace

JobEnd::JobEnd(int rank, int size, Reactor& reactor, const OpenLinks& links, Routes& routes,
               Host& host)
    : rank_(rank), size_(size), reactor_(reactor), links_(links), routes_(routes), host_(host) {}

bool JobEnd::wasUp(size_t link) const {
  return status_.failed() ? up_at_failure_[link] : links_[link].link->usable();
}

// ---- failing -----------------------------------------------------------------------------------

void JobEnd::broadcastFailure(uint32_t channel, const std::string& why) {
  if (!failures_seen_.emplace(channel, rank_).second) return;
  FrameHeader header;
  header.type = FrameType::kFailure;
  header.source = static_cast<uint16_t>(rank_);
  header.channel = channel;
  routes_.flood(header, why, nullptr);
}

void JobEnd::failHere(const std::string& why) {
  if (status_.failed()) return;
  status_.failure = why;
  for (const auto& [spec, link] : links_) up_at_failure_.push_back(link->usable());
  host_.onJobFailed(why);
  resolve(why);
}

void JobEnd::failAll(const std::string& why) {
  if (status_.failed()) return;
  broadcastFailure(kAllChannels, why);
  failHere(why);
}

void JobEnd::fail(const std::string& why) {
  std::promise<void> delivered;
  auto result = delivered.get_future();
  // The data that waits is of no use any more, and the reason shall not wait behind it. Members of
  // a group in shared memory read there what this rank's groups fail for, so that names the rank
  // too.
  reactor_.run([&] {
    if (!status_.failed()) broadcastFailure(kAllChannels, why);
    failHere("rank " + std::to_string(rank_) + " failed: " + why);
    for (const auto& [spec, link] : links_) link->dropData();
    waitForDelivery(Reactor::Clock::now() + kDeliveryLimit, delivered);
  });
  result.wait();
}

// Looks again until the neighbours have all that was sent to them; nothing reports when a system on
// the other side has taken it.
void JobEnd::waitForDelivery(Reactor::Clock::time_point limit, std::promise<void>& delivered) {
  const bool all = std::all_of(links_.begin(), links_.end(), [](const OpenLink& open) {
    return open.link->dead() || open.link->delivered();
  });
  const auto now = Reactor::Clock::now();
  if (all || now >= limit) return delivered.set_value();
  reactor_.at(now + kDeliveryInterval,
              [this, limit, &delivered] { waitForDelivery(limit, delivered); });
}

void JobEnd::onFlooded(const Link& link, const FrameHeader& header, const std::string& text) {
  const int source = header.source;
  if (header.type == FrameType::kLeave) {
    if (status_.hasLeft(source)) return;
    routes_.flood(header, text, &link);
    status_.left.insert(source);
    host_.onRankLeft(source);
    return continueLeaving();
  }
  if (!failures_seen_.emplace(header.channel, source).second) return;
  routes_.flood(header, text, &link);
  const std::string why = "rank " + std::to_string(source) + " failed: " + text;
  if (header.channel == kAllChannels) return failHere(why);
  host_.onChannelFailed(header.channel, why);
}

void JobEnd::forgetChannel(uint32_t channel) {
  failures_seen_.erase(failures_seen_.lower_bound({channel, 0}),
                       failures_seen_.upper_bound({channel, size_}));
}

// ---- leaving -----------------------------------------------------------------------------------

std::string JobEnd::leave(std::chrono::milliseconds limit) {
  std::future<std::string> result;
  reactor_.run([&] {
    leaving_ = std::make_unique<Leaving>();
    result = leaving_->result.get_future();
    if (status_.failed()) return resolve(status_.failure);
    host_.requestAcknowledgements();
    reactor_.after(limit, [this] { resolve("other ranks had not left after the time limit"); });
    continueLeaving();
  });
  return result.get();
}

void JobEnd::continueLeaving() {
  if (!leaving_ || leaving_->resolved) return;
  if (!leaving_->announced) {
    if (!host_.allConsumed()) return;
    leaving_->announced = true;
    FrameHeader header;
    header.type = FrameType::kLeave;
    header.source = static_cast<uint16_t>(rank_);
    routes_.flood(header, "", nullptr);
    status_.left.insert(rank_);
  }
  if (!allLeft()) return;
  if (!std::exchange(status_.closing, true)) {
    for (const auto& [spec, link] : links_) link->finish();
  }
  const bool open =
      std::any_of(links_.begin(), links_.end(), [](const OpenLink& o) { return !o.link->dead(); });
  if (!open) resolve("");
}

void JobEnd::resolve(const std::string& result) {
  if (!leaving_ || std::exchange(leaving_->resolved, true)) return;
  leaving_->result.set_value(result);
}

}  // namespace topoopt
