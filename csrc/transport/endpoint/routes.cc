#include "transport/endpoint/routes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace topoopt {
namespace {

constexpr size_t kLeastFastPartBytes = 32 << 10;  // as kLeastPartBytes, of fast links
constexpr size_t kMostFloodedText = 1024;
// Of a divided message. Relays forward whole frames, so with few of them, links would wait.
constexpr size_t kFramesOfMessage = 16;
constexpr size_t kLeastFrameBytes = 8 << 10;
constexpr size_t kLeastDividedBytes = 1 << 10;  // over one route
constexpr size_t kMostCopies = 12;              // of a route over parallel links

std::map<int, std::vector<Link*>> neighboursOf(const OpenLinks& links) {
  std::map<int, std::vector<Link*>> neighbours;
  for (const auto& [spec, link] : links) {
    if (spec.sends) neighbours[spec.peerRank()].push_back(link.get());
  }
  return neighbours;
}

}  // namespace

// ---- one pair ----------------------------------------------------------------------------------

Routes::Ways::Ways(std::vector<Hop> hops, size_t bytes, size_t size)
    : hops_(std::move(hops)), used_(hops_.size(), 0.0), size_(size) {
  double before = 0;
  size_t given = 0;
  for (const Hop& hop : hops_) {
    before += hop.weight;
    const auto end =
        static_cast<size_t>(std::llround(std::min(before, 1.0) * static_cast<double>(bytes)));
    left_.push_back(end - given);
    given = end;
  }
  size_t& most = *std::max_element(left_.begin(), left_.end());
  most += bytes - given;
  for (size_t& part : left_) {
    if (part < kLeastDividedBytes && &part != &most) most += std::exchange(part, 0);
  }
}

size_t Routes::Ways::next() const {
  size_t best = 0;
  if (!left_.empty()) {
    for (size_t i = 1; i < hops_.size(); ++i) {
      if (left_[i] > 0 && (left_[best] == 0 || used_[i] < used_[best])) best = i;
    }
    return best;
  }
  for (size_t i = 1; i < hops_.size(); ++i) {
    if (hops_[i].whole != hops_[best].whole ? hops_[i].whole : used_[i] < used_[best]) best = i;
  }
  return best;
}

size_t Routes::Ways::framePayload(size_t message_bytes, size_t route) const {
  const size_t most = hops_[route].payload_bytes;
  if (!left_.empty()) {
    const size_t frame = std::max(message_bytes / kFramesOfMessage, kLeastFrameBytes);
    return std::min({most, left_[route], frame});
  }
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
  if (!left_.empty()) left_[route] -= payload_bytes;
  if (hops_.size() == 1) return;
  used_[route] += static_cast<double>(payload_bytes + 1) / hops_[route].weight;
}

bool Routes::Ways::relayed() const {
  return std::any_of(hops_.begin(), hops_.end(), [](const Hop& hop) {
    return hop.weight > 0 && hop.payload_bytes == kRelayedPayloadBytes;
  });
}

// ---- the plan ----------------------------------------------------------------------------------

Routes::Routes(int rank, const OpenLinks& links, const std::vector<plan::Route>& routes,
               const CableGraph* graph, const FlowLimits& limits, BufferPool& buffers, FailJob fail)
    : rank_(rank),
      links_(links),
      graph_(graph),
      limits_(limits),
      buffers_(buffers),
      fail_(std::move(fail)),
      neighbours_(neighboursOf(links)),
      intact_(graph != nullptr && graph->intact()) {
  std::map<Pair, std::vector<Hop>> hops;
  for (const plan::Route& route : routes) {
    const Pair pair{route.servers.front(), route.servers.back()};
    hops[pair].push_back(hopOn(route, hops[pair].size()));
    if (hops[pair].size() > RouteName::kMostPlanned) {
      throw std::invalid_argument("more than 32768 routes from rank " + std::to_string(pair.first) +
                                  " to rank " + std::to_string(pair.second));
    }
  }
  for (const auto& [neighbour, parallel] : neighbours_) {
    auto& direct = hops[{rank_, neighbour}];
    if (!direct.empty()) continue;
    for (Link* link : parallel) {
      direct.push_back({link, 1.0 / static_cast<double>(parallel.size()), link->mostPayload()});
    }
  }
  for (auto& [pair, list] : hops) ways_.emplace(pair, Ways(std::move(list)));
}

// The pair's routes share parallel links in turn.
Routes::Hop Routes::hopOn(const plan::Route& route, size_t number) const {
  const std::vector<int>& ranks = route.servers;
  const bool direct = ranks.size() == 2;
  Hop hop{nullptr, route.weight, direct ? kNeighbourPayloadBytes : kRelayedPayloadBytes, &route};
  const auto here = std::find(ranks.begin(), ranks.end(), rank_);
  if (here == ranks.end() || here + 1 == ranks.end()) return hop;
  const auto found = neighbours_.find(*(here + 1));
  if (found == neighbours_.end()) {
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
const Routes::Hop* Routes::hopOf(const FrameHeader& header) {
  if (RouteName::isChoice(header.route)) {
    if (choices() == nullptr) return nullptr;
    const auto& hops = choicesOf({header.source, header.target}).hops();
    const size_t number = RouteName::choiceOf(header.route);
    return number < hops.size() && hops[number].link != nullptr ? &hops[number] : nullptr;
  }
  const auto found = ways_.find({header.source, header.target});
  if (found == ways_.end() || header.route >= found->second.hops().size()) return nullptr;
  const Hop& hop = found->second.hops()[header.route];
  return hop.link == nullptr ? nullptr : &hop;
}

// ---- choices -----------------------------------------------------------------------------------

const RouteChoices* Routes::choices() {
  if (!std::exchange(choices_known_, true)) findChoices();
  return choices_.get();
}

void Routes::findChoices() {
  if (graph_ == nullptr) return;
  std::map<Pair, size_t> parallel;
  for (const CableEnds& cable : graph_->cables()) {
    if (cable.rate <= 0) return;
    ++parallel[{cable.a, cable.b}];
    if (cable.duplex) ++parallel[{cable.b, cable.a}];
  }
  for (const auto& [ends, count] : parallel) copies_ = std::lcm(copies_, count);
  copies_ = std::min(copies_, kMostCopies);
  for (int rank = graph_->size() - 1; rank >= 0; --rank) {
    const auto server = static_cast<size_t>(graph_->serverOf(rank));
    if (leaders_.size() <= server) leaders_.resize(server + 1, -1);
    leaders_[server] = rank;
  }
  std::vector<RatedLink> links;
  for (const LinkLeft& link : graph_->plannedLinks()) {
    links.push_back({link.source, link.target, link.planned_rate});
  }
  choices_ = std::make_unique<RouteChoices>(static_cast<int>(leaders_.size()), std::move(links));
}

// The copies of a path follow each other, and take parallel links in turn.
const Routes::Ways& Routes::choicesOf(const Pair& pair) {
  if (const auto found = choice_ways_.find(pair); found != choice_ways_.end()) return found->second;
  std::vector<Hop> hops;
  const int source = graph_->serverOf(pair.first);
  const int target = graph_->serverOf(pair.second);
  for (const RouteChoices::Path& path : choices_->of(source, target)) {
    plan::Route route{{pair.first}, 0.0};
    for (const int server : path) {
      if (leaders_[server] != route.servers.back()) route.servers.push_back(leaders_[server]);
    }
    if (pair.second != route.servers.back()) route.servers.push_back(pair.second);
    const plan::Route& kept = choice_routes_.emplace_back(std::move(route));
    for (size_t copy = 0; copy < copies_; ++copy) {
      Hop& hop = hops.emplace_back(hopOn(kept, hops.size()));
      hop.whole = isWhole(pair, hop);
    }
  }
  return choice_ways_.emplace(pair, Ways(std::move(hops))).first->second;
}

std::shared_ptr<Routes::Ways> Routes::divided(int target, const std::vector<double>& shares,
                                              size_t bytes, double mean_bytes) {
  const double size = RouteName::kMeanSize * static_cast<double>(bytes) / mean_bytes;
  std::vector<Hop> hops = choicesOf({rank_, target}).hops();
  for (size_t i = 0; i < hops.size(); ++i) {
    hops[i].weight = shares[i / copies_] / static_cast<double>(copies_);
  }
  return std::make_shared<Ways>(
      std::move(hops), bytes,
      static_cast<size_t>(std::clamp(std::round(size), 1.0, double{RouteName::kMostSize})));
}

// ---- frames of this rank -----------------------------------------------------------------------

void Routes::send(const Hop& hop, OutFrame frame) {
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
Link* Routes::wayOf(FrameHeader& header) {
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
  intact_ = graph_ != nullptr && graph_->intact() &&
            std::all_of(links_.begin(), links_.end(),
                        [](const auto& link) { return link.link->usable(); });
  for (auto* const all : {&ways_, &choice_ways_}) {
    for (auto& [pair, ways] : *all) {
      for (size_t i = 0; i < ways.hops().size(); ++i) {
        ways.setWhole(i, isWhole(pair, ways.hops()[i]));
      }
    }
  }
  for (OutFrame& frame : std::exchange(stranded_, {})) dispatch(std::move(frame));
}

}  // namespace topoopt
