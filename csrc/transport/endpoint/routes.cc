#include "transport/endpoint/routes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace topoopt {
namespace {

constexpr size_t kLeastFastPartBytes = 32 << 10;  // as kLeastPartBytes, of fast links
constexpr size_t kMostFloodedText = 1024;

}  // namespace

// ---- one pair ----------------------------------------------------------------------------------

size_t Routes::Ways::next() const {
  size_t best = 0;
  for (size_t i = 1; i < hops_.size(); ++i) {
    if (hops_[i].whole != hops_[best].whole ? hops_[i].whole : used_[i] < used_[best]) best = i;
  }
  return best;
}

size_t Routes::Ways::framePayload(size_t message_bytes, size_t route) const {
  const size_t most = hops_[route].payload_bytes;
  const bool parallel =
      hops_.size() > 1 && std::all_of(hops_.begin(), hops_.end(), [](const Hop& hop) {
        return hop.payload_bytes > kRelayedPayloadBytes;
      });
  if (!parallel) return most;
  // What a fast link carries in the time of a wake-up is not worth two.
  const size_t least = most == kMaxPayloadBytes ? kLeastFastPartBytes : kLeastPartBytes;
  const double share = std::ceil(static_cast<double>(message_bytes) * hops_[route].weight);
  return std::min(most, std::max(least, static_cast<size_t>(share)));
}

void Routes::Ways::charge(size_t route, size_t payload_bytes) {
  if (hops_.size() == 1) return;
  used_[route] += static_cast<double>(payload_bytes + 1) / hops_[route].weight;
}

bool Routes::Ways::relayed() const {
  return std::any_of(hops_.begin(), hops_.end(),
                     [](const Hop& hop) { return hop.payload_bytes == kRelayedPayloadBytes; });
}

// ---- the plan ----------------------------------------------------------------------------------

Routes::Routes(int rank, const OpenLinks& links, const std::vector<plan::Route>& routes,
               const CableGraph* graph, const FlowLimits& limits, BufferPool& buffers, FailJob fail)
    : rank_(rank),
      links_(links),
      graph_(graph),
      limits_(limits),
      buffers_(buffers),
      fail_(std::move(fail)) {
  Neighbours neighbours;
  for (const auto& [spec, link] : links_) {
    if (spec.sends) neighbours[spec.peerRank()].push_back(link.get());
  }
  std::map<Pair, std::vector<Hop>> hops;
  for (const plan::Route& route : routes) {
    const Pair pair{route.servers.front(), route.servers.back()};
    hops[pair].push_back(hopOfPlan(route, hops[pair].size(), neighbours));
    if (hops[pair].size() > UINT16_MAX) {
      throw std::invalid_argument("more than 65535 routes from rank " + std::to_string(pair.first) +
                                  " to rank " + std::to_string(pair.second));
    }
  }
  for (const auto& [neighbour, parallel] : neighbours) {
    auto& direct = hops[{rank_, neighbour}];
    if (!direct.empty()) continue;
    for (Link* link : parallel) {
      direct.push_back({link, 1.0 / static_cast<double>(parallel.size()), link->mostPayload()});
    }
  }
  for (auto& [pair, list] : hops) ways_.emplace(pair, Ways(std::move(list)));
}

// The pair's routes share parallel links in turn.
Routes::Hop Routes::hopOfPlan(const plan::Route& route, size_t number,
                              const Neighbours& neighbours) const {
  const std::vector<int>& ranks = route.servers;
  const bool direct = ranks.size() == 2;
  Hop hop{nullptr, route.weight, direct ? kNeighbourPayloadBytes : kRelayedPayloadBytes, &route};
  const auto here = std::find(ranks.begin(), ranks.end(), rank_);
  if (here == ranks.end() || here + 1 == ranks.end()) return hop;
  const auto found = neighbours.find(*(here + 1));
  if (found == neighbours.end()) {
    throw std::invalid_argument("a route needs a link from rank " + std::to_string(rank_) +
                                " to rank " + std::to_string(*(here + 1)) +
                                ", which is not in the plan");
  }
  hop.link = found->second[number % found->second.size()];
  if (direct) hop.payload_bytes = hop.link->mostPayload();
  return hop;
}

Routes::Ways* Routes::waysTo(int target) {
  const auto found = ways_.find({rank_, target});
  return found == ways_.end() ? nullptr : &found->second;
}

// The hop of the route that the frame names, nullptr if there is none from here.
const Routes::Hop* Routes::hopOf(const FrameHeader& header) const {
  const auto found = ways_.find({header.source, header.target});
  if (found == ways_.end() || header.route >= found->second.hops().size()) return nullptr;
  const Hop& hop = found->second.hops()[header.route];
  return hop.link == nullptr ? nullptr : &hop;
}

// ---- frames of this rank -----------------------------------------------------------------------

void Routes::send(const Ways& ways, OutFrame frame) {
  const Hop& hop = ways.hops()[frame.header.route];
  if (hop.whole) return hop.link->send(std::move(frame));
  dispatch(std::move(frame));
}

void Routes::sendControl(int target, FrameHeader header, const std::string& payload) {
  header.source = static_cast<uint16_t>(rank_);
  header.target = static_cast<uint16_t>(target);
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  const Ways* const ways = waysTo(target);
  if (ways == nullptr) return;
  OutFrame frame;
  frame.header = header;
  if (!payload.empty()) {
    frame.owned = buffers_.take(payload.size());
    std::memcpy(frame.owned.data(), payload.data(), payload.size());
  }
  const Hop& hop = ways->hops().front();
  if (hop.whole) return hop.link->sendControl(std::move(frame));
  dispatch(std::move(frame));
}

void Routes::flood(FrameHeader header, const std::string& text, const Link* except) {
  const size_t bytes = std::min(text.size(), kMostFloodedText);
  header.payload_bytes = static_cast<uint32_t>(bytes);
  for (const auto& [spec, link] : links_) {
    if (!spec.sends || link.get() == except || !link->usable()) continue;
    OutFrame frame;
    frame.header = header;
    frame.owned = buffers_.take(bytes);
    if (bytes > 0) std::memcpy(frame.owned.data(), text.data(), bytes);
    link->sendControl(std::move(frame));
  }
}

void Routes::dropOwn(uint32_t channel, const std::function<void(const FrameHeader&)>& dropped) {
  for (const auto& [spec, link] : links_) link->dropOwn(channel, dropped);
  std::erase_if(stranded_, [&](const OutFrame& frame) {
    const bool own = frame.header.type == FrameType::kData && frame.header.channel == channel &&
                     frame.header.source == rank_;
    if (own) dropped(frame.header);
    return own;
  });
}

// ---- frames of others --------------------------------------------------------------------------

void Routes::relay(const FrameHeader& header, PayloadBuffer payload) {
  const Hop* const hop = hopOf(header);
  if (hop == nullptr && (header.detour == 0 || graph_ == nullptr)) {
    return fail_("rank " + std::to_string(rank_) + " is not on route " +
                 std::to_string(header.route) + " from rank " + std::to_string(header.source) +
                 " to rank " + std::to_string(header.target));
  }
  if (header.type == FrameType::kData && !mayRelay(header)) return;
  OutFrame frame;
  frame.header = header;
  frame.owned = std::move(payload);
  // Also while a cable moves, which is not reported.
  if (graph_ != nullptr) return dispatch(std::move(frame));
  if (header.type == FrameType::kData) {
    hop->link->send(std::move(frame));
  } else {
    hop->link->sendControl(std::move(frame));
  }
}

// More than the limit is accepted: a source no longer counts the frames of channels that failed
// there. Frames on detours are not counted: their source may have had a link to their target.
bool Routes::mayRelay(const FrameHeader& header) {
  constexpr size_t kTolerance = 4;
  const size_t most = kTolerance * (limits_.early + limits_.relayed);
  const uint64_t held = buffers_.relayedOf(header.source);
  if (header.detour != 0 || held + header.payload_bytes <= most) return true;
  fail_("rank " + std::to_string(header.source) + " has sent more than " + std::to_string(most) +
        " bytes that rank " + std::to_string(rank_) + " has not passed on yet");
  return false;
}

// ---- ways around -------------------------------------------------------------------------------

Link* Routes::usableLinkTo(int neighbour) const {
  for (const auto& [spec, link] : links_) {
    if (!spec.sends || spec.peerRank() != neighbour || !link->usable()) continue;
    if (spec.cable == kNoCable || graph_->carries(spec.cable, rank_)) return link.get();
  }
  return nullptr;
}

// Nullptr if there is no way.
Link* Routes::wayOf(FrameHeader& header) const {
  if (header.detour == 0) {
    const Hop* const hop = hopOf(header);
    if (hop != nullptr && hop->whole && hop->link->usable()) return hop->link;
    header.detour = 1;
  }
  const int next = graph_->nextHop(header.target);
  return next < 0 ? nullptr : usableLinkTo(next);
}

void Routes::dispatch(OutFrame frame) {
  const FrameType type = frame.header.type;
  if (isForOneLink(type) || isFlooded(type)) return;
  Link* const link = wayOf(frame.header);
  if (link == nullptr) {
    stranded_.push_back(std::move(frame));
  } else if (type == FrameType::kData) {
    link->send(std::move(frame));
  } else {
    link->sendControl(std::move(frame));
  }
}

bool Routes::isWhole(const Pair& pair, const Hop& hop) const {
  if (hop.link != nullptr) {
    const int cable = hop.link->cable();
    if (!hop.link->usable()) return false;
    if (cable != kNoCable && !graph_->carries(cable, rank_)) return false;
  }
  // The source chooses the route, so it looks at all cables.
  if (pair.first != rank_ || hop.route == nullptr) return true;
  const std::vector<int>& ranks = hop.route->servers;
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (!graph_->linked(ranks[i - 1], ranks[i])) return false;
  }
  return true;
}

void Routes::findWays() {
  for (auto& [pair, ways] : ways_) {
    for (size_t i = 0; i < ways.hops().size(); ++i) ways.setWhole(i, isWhole(pair, ways.hops()[i]));
  }
  for (OutFrame& frame : std::exchange(stranded_, {})) dispatch(std::move(frame));
}

}  // namespace topoopt
