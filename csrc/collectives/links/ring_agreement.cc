#include "collectives/links/ring_agreement.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log.h"

namespace topoopt {
namespace {

// Answer limit of all members that have created the group, and the first member's initial delay
// before it proposes again.
constexpr std::chrono::milliseconds kAgreementLimit{2000};
constexpr std::chrono::milliseconds kFirstPause{2000};
constexpr std::chrono::milliseconds kLongestPause{60'000};

// A member that has held for longer has missed the end of an offer.
constexpr std::chrono::milliseconds kLongestHold{3000};
constexpr size_t kEndsKept = 256;

constexpr uint64_t kTakenBack = UINT64_MAX;

constexpr size_t kLinkBytes = 2 * sizeof(int32_t) + sizeof(double);

// Wire format: for each set of links their number, then the source, target and rate of each; for
// each ring its share, then its members.
std::string encoded(const CollectivePaths& paths) {
  std::string text;
  const auto add = [&text](const auto& value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const LinkSet& links : paths.link_sets) {
    add(static_cast<uint32_t>(links.size()));
    for (const RatedLink& link : links) {
      add(static_cast<int32_t>(link.source));
      add(static_cast<int32_t>(link.target));
      add(link.rate);
    }
  }
  for (const plan::Ring& ring : paths.rings) {
    add(ring.share);
    for (const int member : ring.servers) add(static_cast<int32_t>(member));
  }
  return text;
}

// Rings may have no members and links may be missing, so the header carries the bytes of all links
// and the number of rings.
uint64_t countsOf(const CollectivePaths& paths) {
  size_t bytes = 0;
  for (const LinkSet& links : paths.link_sets) {
    bytes += sizeof(uint32_t) + links.size() * kLinkBytes;
  }
  return bytes << 32 | paths.rings.size();
}

// nullopt for a payload that cannot be.
std::optional<CollectivePaths> decoded(const std::string& payload, uint64_t counts) {
  const size_t link_bytes = counts >> 32;
  const size_t rings = counts & UINT32_MAX;
  if (rings == 0 || link_bytes > payload.size()) return std::nullopt;
  const char* at = payload.data();
  const auto read = [&at](auto value) {
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  };
  CollectivePaths paths;
  const char* const links_end = at + link_bytes;
  const auto left = [&] { return static_cast<size_t>(links_end - at); };
  while (left() > 0) {
    if (left() < sizeof(uint32_t)) return std::nullopt;
    const auto links = read(uint32_t{});
    if (links > left() / kLinkBytes) return std::nullopt;
    LinkSet& set = paths.link_sets.emplace_back();
    for (size_t i = 0; i < links; ++i) {
      const auto source = read(int32_t{});
      const auto target = read(int32_t{});
      set.push_back({source, target, read(double{})});
    }
  }
  const size_t bytes = payload.size() - link_bytes;
  const size_t ring_bytes = bytes / rings;
  if (ring_bytes <= sizeof(double) || bytes % rings != 0) return std::nullopt;
  for (size_t r = 0; r < rings; ++r) {
    at = links_end + r * ring_bytes;
    plan::Ring& ring = paths.rings.emplace_back();
    ring.share = read(double{});
    if (!(ring.share > 0 && ring.share <= 1)) return std::nullopt;
    for (size_t i = sizeof(double); i + sizeof(int32_t) <= ring_bytes; i += sizeof(int32_t)) {
      ring.servers.push_back(read(int32_t{}));
    }
  }
  return paths;
}

}  // namespace

bool OfferedRings::offer(uint64_t version, CollectivePaths paths) {
  if (ended_first_.erase(version) > 0) return false;
  open_[version] = std::move(paths);
  return true;
}

std::optional<CollectivePaths> OfferedRings::end(uint64_t version) {
  auto offer = open_.extract(version);
  if (!offer.empty()) return std::move(offer.mapped());
  ended_first_.insert(version);
  return std::nullopt;
}

void OfferedRings::clear() {
  open_.clear();
  ended_first_.clear();
}

RingAgreement::RingAgreement(Endpoint& endpoint, uint32_t channel, const std::vector<int>& ranks,
                             int rank, Member member)
    : endpoint_(endpoint),
      channel_(channel),
      ranks_(ranks),
      rank_(rank),
      member_(std::move(member)),
      pause_(kFirstPause) {}

void RingAgreement::broadcast(FrameType type, uint64_t number, const std::string& payload) {
  FrameHeader header;
  header.type = type;
  header.channel = channel_;
  header.message = version_;
  header.offset = number;
  for (size_t member = 0; member < ranks_.size(); ++member) {
    if (static_cast<int>(member) != rank_) endpoint_.sendControl(ranks_[member], header, payload);
  }
}

// ---- the first member --------------------------------------------------------------------------

void RingAgreement::propose(CollectivePaths paths) {
  if (asking_) {
    wanted_ = std::move(paths);
    return;
  }
  if (timer_) endpoint_.reactor().cancel(*std::exchange(timer_, std::nullopt));
  start(std::move(paths));
}

void RingAgreement::start(CollectivePaths paths) {
  ++version_;
  asking_ = true;
  missing_ = {ranks_.begin(), ranks_.end()};
  missing_.erase(ranks_[rank_]);
  broadcast(FrameType::kRings, countsOf(paths), encoded(paths));
  first_ = member_.next();
  offered_.offer(version_, std::move(paths));
  if (missing_.empty()) return decide(first_);
  timer_ = endpoint_.reactor().after(kAgreementLimit, [this] {
    timer_.reset();
    giveUp();
  });
}

void RingAgreement::onAnswer(int source, uint64_t version, uint64_t next) {
  if (const auto end = ends_.find(version); end != ends_.end()) return sendEnd(source, *end);
  if (!asking_ || version != version_ || missing_.erase(source) == 0) return;
  first_ = std::max(first_, next);
  if (!missing_.empty()) return;
  endpoint_.reactor().cancel(*std::exchange(timer_, std::nullopt));
  pause_ = kFirstPause;
  decide(first_);
}

void RingAgreement::decide(uint64_t first) {
  asking_ = false;
  end(first);
  if (wanted_) propose(*std::exchange(wanted_, std::nullopt));
}

// Ends the last proposed version.
void RingAgreement::end(uint64_t first) {
  ends_[version_] = first;
  if (ends_.size() > kEndsKept) ends_.erase(ends_.begin());
  broadcast(FrameType::kRingsStart, first, "");
  onStart(version_, first);
}

// Sent again to late members and to those that may have missed the end.
void RingAgreement::sendEnd(int member, const std::pair<const uint64_t, uint64_t>& end) {
  FrameHeader header;
  header.type = FrameType::kRingsStart;
  header.channel = channel_;
  header.message = end.first;
  header.offset = end.second;
  endpoint_.sendControl(member, header, "");
}

void RingAgreement::giveUp() {
  if (!wanted_) wanted_ = offered_.at(version_);
  asking_ = false;
  timer_ = endpoint_.reactor().after(pause_, [this] {
    timer_.reset();
    if (wanted_) propose(*std::exchange(wanted_, std::nullopt));
  });
  pause_ = std::min(2 * pause_, kLongestPause);
  end(kTakenBack);
}

// ---- every member ------------------------------------------------------------------------------

bool RingAgreement::onControl(const FrameHeader& header, const std::string& payload) {
  switch (header.type) {
    case FrameType::kRings: {
      if (header.source != ranks_.front()) return true;
      auto paths = decoded(payload, header.offset);
      if (paths) onOffer(header.message, std::move(*paths));
      return true;
    }
    case FrameType::kRingsAnswer:
      onAnswer(header.source, header.message, header.offset);
      return true;
    case FrameType::kRingsStart:
      if (header.source == ranks_.front()) onStart(header.message, header.offset);
      return true;
    default:
      return false;
  }
}

void RingAgreement::onOffer(uint64_t version, CollectivePaths paths) {
  if (!offered_.offer(version, std::move(paths))) return;
  answer(version);
  watchHold();
}

void RingAgreement::answer(uint64_t version) {
  FrameHeader header;
  header.type = FrameType::kRingsAnswer;
  header.channel = channel_;
  header.message = version;
  header.offset = member_.next();
  endpoint_.sendControl(ranks_.front(), header, "");
}

void RingAgreement::watchHold() {
  if (hold_timer_ || !holds()) return;
  hold_timer_ = endpoint_.reactor().after(kLongestHold, [this, version = offered_.first()] {
    hold_timer_.reset();
    if (holds() && offered_.first() == version) {
      logLine(LogLevel::kWarning, "operations wait for an agreement on rings; asking rank " +
                                      std::to_string(ranks_.front()) + " again");
      answer(version);
    }
    watchHold();
  });
}

void RingAgreement::onStart(uint64_t version, uint64_t first) {
  auto paths = offered_.end(version);
  if (!paths) return;
  if (first != kTakenBack) member_.decided(version, first, std::move(*paths));
  if (!holds()) member_.released();
}

void RingAgreement::cancel(bool notify) {
  for (auto* timer : {&timer_, &hold_timer_}) {
    if (*timer) endpoint_.reactor().cancel(*std::exchange(*timer, std::nullopt));
  }
  if (notify && asking_) broadcast(FrameType::kRingsStart, kTakenBack, "");
  asking_ = false;
  wanted_.reset();
  offered_.clear();
}

}  // namespace topoopt
