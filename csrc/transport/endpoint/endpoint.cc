#include "transport/endpoint/endpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/errors.h"
#include "common/log.h"
#include "transport/descriptor.h"
#include "transport/endpoint/open_link.h"

namespace topoopt {
namespace {

constexpr size_t kLeastFastPartBytes = 32 << 10;  // as kLeastPartBytes, of fast links

bool fitsItsMessage(const FrameHeader& header) {
  return header.payload_bytes <= header.message_bytes &&
         header.offset <= header.message_bytes - header.payload_bytes;
}

void checkRank(const char* field, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw std::invalid_argument(std::string(field) + ": rank " + std::to_string(rank) +
                              " is not in 0.." + std::to_string(size - 1));
}

// What the rest relies on. Links whose descriptor is none fail when they start.
void checkConfig(const EndpointConfig& config) {
  if (config.window_bytes == 0) {
    throw std::invalid_argument("window_bytes is 0; it must be at least 1");
  }
  checkRank("rank", config.rank, config.size);
  for (const LinkSpec& link : config.links) checkRank("links", link.peerRank(), config.size);
  for (const plan::Route& route : config.routes) {
    if (route.servers.size() < 2)
      throw std::invalid_argument("routes: one has less than two ranks");
    for (int rank : route.servers) checkRank("routes", rank, config.size);
    if (!std::isfinite(route.weight) || route.weight <= 0) {
      throw std::invalid_argument("routes: weight " + std::to_string(route.weight) +
                                  " is not above 0 and finite");
    }
  }
}

}  // namespace

Endpoint::Endpoint(EndpointConfig config)
    : config_(std::move(config)),
      limits_(FlowLimits::of(config_.size, config_.window_bytes, config_.memory_bytes)),
      workers_(config_.workers > 0 ? std::make_unique<WorkerPool>(config_.workers) : nullptr) {
  openLinks();
  try {
    checkConfig(config_);
    peers_.resize(static_cast<size_t>(config_.size));
    buildRoutes();
    startCables();
    reactor_.run([this] {
      for (auto& link : links_) link->start();
      if (graph_) watchCables();
      watchNeighbours();
    });
  } catch (...) {
    reactor_.stop();  // before the links go
    throw;
  }
}

Endpoint::~Endpoint() {
  if (reactor_.onLoop()) {
    std::fputs("topoopt: an endpoint was destroyed on its own reactor thread\n", stderr);
    std::abort();
  }
  stop();
}

void Endpoint::stop() {
  if (reactor_.onLoop()) {
    throw std::logic_error("an endpoint cannot be closed on its own reactor thread");
  }
  if (std::exchange(stopped_, true)) return;
  reactor_.run([this] {
    failAll("the endpoint was closed", false);
    for (auto& link : links_) link->close();
    carriers_.reset();
    for (auto& [number, cable] : cables_) Descriptor(std::exchange(cable.waiting_fd, -1));
  });
  reactor_.stop();
}

// All descriptors are owned from here on, also by an endpoint that fails to open one of them.
void Endpoint::openLinks() {
  size_t next = 0;
  try {
    for (; next < config_.links.size(); ++next) {
      links_.push_back(openLink(config_.links[next], {config_.rank, reactor_, buffers_, *this}));
    }
  } catch (...) {
    for (++next; next < config_.links.size(); ++next) Descriptor(config_.links[next].fd);
    reactor_.stop();
    throw;
  }
}

// For every pair whose bytes can pass through this rank: the link each route takes from here.
void Endpoint::buildRoutes() {
  std::map<int, std::vector<Link*>> neighbours;
  for (size_t i = 0; i < links_.size(); ++i) {
    const LinkSpec& spec = config_.links[i];
    if (spec.sends) neighbours[spec.peerRank()].push_back(links_[i].get());
  }
  for (const plan::Route& route : config_.routes) {
    auto& hops = hops_[{route.servers.front(), route.servers.back()}];
    Hop hop{nullptr, route.weight,
            route.servers.size() == 2 ? kNeighbourPayloadBytes : kRelayedPayloadBytes, &route};
    const auto here = std::find(route.servers.begin(), route.servers.end(), config_.rank);
    if (here != route.servers.end() && here + 1 != route.servers.end()) {
      const auto found = neighbours.find(*(here + 1));
      if (found == neighbours.end()) {
        throw std::invalid_argument("a route needs a link from rank " +
                                    std::to_string(config_.rank) + " to rank " +
                                    std::to_string(*(here + 1)) + ", which is not in the plan");
      }
      hop.link = found->second[hops.size() % found->second.size()];
      if (route.servers.size() == 2) hop.payload_bytes = hop.link->mostPayload();
    }
    hops.push_back(hop);
    if (hops.size() > UINT16_MAX) {
      throw std::invalid_argument("more than 65535 routes from rank " +
                                  std::to_string(route.servers.front()) + " to rank " +
                                  std::to_string(route.servers.back()));
    }
  }
  for (const auto& [neighbour, links] : neighbours) {
    auto& hops = hops_[{config_.rank, neighbour}];
    if (!hops.empty()) continue;
    for (Link* link : links) {
      hops.push_back({link, 1.0 / static_cast<double>(links.size()), link->mostPayload()});
    }
  }
}

const std::vector<Endpoint::Hop>& Endpoint::hopsTo(int source, int target) const {
  static const std::vector<Hop> none;
  const auto found = hops_.find({source, target});
  return found == hops_.end() ? none : found->second;
}

// ---- sending -----------------------------------------------------------------------------------

void Endpoint::send(const FlowId& flow, const void* data, size_t bytes, uint64_t fingerprint,
                    Done done, bool prompt) {
  if (!failure_.empty()) return done(peerLost(failure_));
  if (left_.contains(flow.peer)) return done(peerLost(leftText(flow.peer)));
  const std::vector<Hop>& hops = hopsTo(config_.rank, flow.peer);
  if (hops.empty()) {
    return done(peerLost("the plan has no route to rank " + std::to_string(flow.peer)));
  }
  const auto iteration = static_cast<uint16_t>(iteration_.load());
  if (flow.channel < kFirstProbeChannel) own_iterations_.add(iteration, bytes);
  const auto [entry, begins] = out_.try_emplace(flow);
  OutFlow& out = entry->second;
  if (begins) out.generation = peers_[flow.peer].generation;
  out.relayed = std::any_of(hops.begin(), hops.end(), [](const Hop& hop) {
    return hop.payload_bytes == kRelayedPayloadBytes;
  });
  auto progress = std::make_shared<SendProgress>(SendProgress{bytes, std::move(done), prompt});
  out.pending.push_back({static_cast<const std::byte*>(data), bytes, 0, out.next_number++,
                         fingerprint, iteration, std::move(progress)});
  pump(flow, out);
}

void Endpoint::hurry(uint32_t channel) {
  if (!graph_) return;  // nothing is kept
  for (const auto& [id, flow] : out_) {
    if (id.channel != channel) continue;
    for (const OutMessage& message : flow.pending) message.progress->prompt = true;
  }
  for (auto& link : links_) link->hurry(channel);
}

// The route to `peer` that is furthest behind its weight, over all flows: many short messages, each
// a flow of its own, spread as one long one does.
size_t Endpoint::chooseRoute(int peer, const std::vector<Hop>& hops) {
  if (hops.size() == 1) return 0;
  std::vector<double>& used = used_[peer];
  used.resize(hops.size(), 0.0);
  size_t best = 0;
  for (size_t i = 1; i < hops.size(); ++i) {
    if (hops[i].whole != hops[best].whole ? hops[i].whole : used[i] < used[best]) best = i;
  }
  return best;
}

// Over parallel links to a neighbour a message goes in parts, so that it takes all of them at once.
size_t Endpoint::framePayload(size_t message_bytes, size_t route, const std::vector<Hop>& hops) {
  const size_t most = hops[route].payload_bytes;
  const bool parallel =
      hops.size() > 1 && std::all_of(hops.begin(), hops.end(), [](const Hop& hop) {
        return hop.payload_bytes > kRelayedPayloadBytes;
      });
  if (!parallel) return most;
  // What a fast link carries in the time of a wake-up is not worth two.
  const size_t least = most == kMaxPayloadBytes ? kLeastFastPartBytes : kLeastPartBytes;
  const double share = std::ceil(static_cast<double>(message_bytes) * hops[route].weight);
  return std::min(most, std::max(least, static_cast<size_t>(share)));
}

void Endpoint::pump(const FlowId& id, OutFlow& flow) {
  const std::vector<Hop>& hops = hopsTo(config_.rank, id.peer);
  while (!flow.pending.empty() && flow.sent - flow.acked < config_.window_bytes) {
    const std::optional<size_t> allowed = allowance(id, flow);
    if (!allowed) return;
    OutMessage& message = flow.pending.front();
    const size_t left = message.bytes - message.framed;
    const size_t route = chooseRoute(id.peer, hops);
    const size_t payload = std::min({left, framePayload(message.bytes, route, hops), *allowed});
    if (hops.size() > 1) {
      used_[id.peer][route] += static_cast<double>(payload + 1) / hops[route].weight;
    }
    OutFrame frame;
    frame.header.source = static_cast<uint16_t>(config_.rank);
    frame.header.target = static_cast<uint16_t>(id.peer);
    frame.header.channel = id.channel;
    frame.header.stream = id.stream;
    frame.header.route = static_cast<uint16_t>(route);
    frame.header.iteration = message.iteration;
    frame.header.message = message.number;
    frame.header.message_bytes = message.bytes;
    frame.header.offset = message.framed;
    frame.header.payload_bytes = static_cast<uint32_t>(payload);
    frame.header.generation = flow.generation;
    frame.header.fingerprint = message.fingerprint;
    frame.payload = message.data + message.framed;
    frame.message = message.progress;
    message.framed += payload;
    flow.sent += costOf(payload);
    if (message.number >= flow.granted) addEarly(id, flow, costOf(payload));
    if (message.framed == message.bytes) flow.pending.pop_front();
    settle(id, flow);
    if (hops[route].whole) {
      hops[route].link->send(std::move(frame));
    } else {
      dispatch(std::move(frame));
    }
  }
}

// ---- receiving ---------------------------------------------------------------------------------

Endpoint::Posted* Endpoint::postedFor(InFlow& flow, uint64_t message) {
  if (message < flow.base || message - flow.base >= flow.posted.size()) return nullptr;
  return &flow.posted[message - flow.base];
}

bool Endpoint::matches(const FlowId& id, size_t bytes, uint64_t fingerprint, size_t message_bytes,
                       uint64_t message_fingerprint, const Done& done) {
  if (bytes == message_bytes && fingerprint == message_fingerprint) return true;
  done(std::make_exception_ptr(MessageMismatch(
      id.peer, config_.rank, {message_bytes, message_fingerprint}, {bytes, fingerprint})));
  return false;
}

void Endpoint::receive(const FlowId& id, void* data, size_t bytes, uint64_t fingerprint,
                       Done done) {
  post(id, {static_cast<std::byte*>(data), bytes, fingerprint, std::move(done)});
}

void Endpoint::receiveUpTo(const FlowId& id, void* data, size_t capacity, uint64_t fingerprint,
                           size_t* bytes, Done done) {
  Posted posted{static_cast<std::byte*>(data), capacity, fingerprint, std::move(done)};
  posted.actual = bytes;
  post(id, std::move(posted));
}

void Endpoint::post(const FlowId& id, Posted wanted) {
  if (!failure_.empty()) return wanted.done(peerLost(failure_));
  InFlow& flow = in_[id];
  const uint64_t number = flow.base + flow.posted.size();
  const auto early = flow.early.find(number);
  if (early == flow.early.end() && left_.contains(id.peer)) {
    return wanted.done(peerLost(leftText(id.peer)));
  }
  if (early != flow.early.end()) {
    wanted.learnSize(early->second.message_bytes);
    if (!matches(id, wanted.bytes, wanted.fingerprint, early->second.message_bytes,
                 early->second.fingerprint, wanted.done)) {
      return;
    }
  }
  const uint64_t fingerprint = wanted.fingerprint;
  flow.posted.push_back(std::move(wanted));
  if (number + 1 == flow.requested) acknowledge(id, flow);
  // Now it is the turn of the next message, which may be here already (messages can overtake).
  if (early == flow.early.end()) return bindAnyReceives(id);
  Posted& posted = flow.posted.back();
  const size_t cost = early->second.cost;
  for (const auto& [offset, payload] : early->second.frames) {
    if (!payload.empty()) std::memcpy(posted.data + offset, payload.data(), payload.size());
    posted.received += payload.size();
  }
  uncountEarly(id, fingerprint);
  forgetEarly(id.peer, cost);
  flow.early.erase(early);
  posted.complete = posted.received == posted.bytes;
  consumed(id, flow, cost);
  completeFront(id);
  bindAnyReceives(id);
}

void Endpoint::receiveAny(const std::vector<int>& peers, uint32_t channel, uint64_t stream,
                          void* data, size_t bytes, uint64_t fingerprint,
                          std::function<void(int)> from, Done done) {
  if (!failure_.empty()) return done(peerLost(failure_));
  for (int peer : peers) {
    const FlowId id{peer, channel, stream};
    const auto flow = in_.find(id);
    if (flow == in_.end() || !flow->second.hasNext()) continue;
    from(peer);
    return receive(id, data, bytes, fingerprint, std::move(done));
  }
  if (allLeft(peers)) return done(peerLost(leftText(peers.back())));
  any_.push_back({peers, channel, stream, static_cast<std::byte*>(data), bytes, fingerprint,
                  std::move(from), std::move(done)});
}

// If the next message of `id` is here without a receive, gives it to the oldest receiveAny that
// accepts it; the receive then looks for the message after that.
void Endpoint::bindAnyReceives(const FlowId& id) {
  const auto flow = in_.find(id);
  if (flow == in_.end()) return;
  if (!flow->second.hasNext()) return;
  for (auto any = any_.begin(); any != any_.end(); ++any) {
    if (any->channel != id.channel || any->stream != id.stream) continue;
    if (std::find(any->peers.begin(), any->peers.end(), id.peer) == any->peers.end()) continue;
    AnyReceive taken = std::move(*any);
    any_.erase(any);
    taken.from(id.peer);
    return receive(id, taken.data, taken.bytes, taken.fingerprint, std::move(taken.done));
  }
}

// Completes the receives at the head of the flow that have all their bytes, in order.
void Endpoint::completeFront(const FlowId& id) {
  for (;;) {
    // Looked up anew: a callback may change the table.
    const auto found = in_.find(id);
    if (found == in_.end()) return;
    InFlow& flow = found->second;
    if (flow.posted.empty() || !flow.posted.front().complete) return;
    const Done done = std::move(flow.posted.front().done);
    flow.posted.pop_front();
    ++flow.base;
    done(nullptr);
  }
}

void Endpoint::sendControl(int target, FrameHeader header, const std::string& payload) {
  header.source = static_cast<uint16_t>(config_.rank);
  header.target = static_cast<uint16_t>(target);
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  const auto& hops = hopsTo(config_.rank, target);
  if (hops.empty()) return;
  OutFrame frame;
  frame.header = header;
  if (!payload.empty()) {
    frame.owned = buffers_.take(payload.size());
    std::memcpy(frame.owned.data(), payload.data(), payload.size());
  }
  if (hops.front().whole) return hops.front().link->sendControl(std::move(frame));
  dispatch(std::move(frame));
}

// What is wrong with the ranks that a frame names, or "".
std::string Endpoint::wrongEnds(const FrameHeader& header) const {
  if (header.source >= config_.size) {
    return "from rank " + std::to_string(header.source) + ", which is not in 0.." +
           std::to_string(config_.size - 1);
  }
  if (header.target >= config_.size) {
    return "for rank " + std::to_string(header.target) + ", which is not in 0.." +
           std::to_string(config_.size - 1);
  }
  const bool from_here = header.source == config_.rank;
  if (from_here && header.type == FrameType::kLeave && !left_.contains(config_.rank)) {
    return "that says that this rank, " + std::to_string(config_.rank) + ", has left";
  }
  // On a detour a frame may pass its own source again.
  if (from_here && header.target == config_.rank && header.type == FrameType::kData) {
    return "from this rank to itself";
  }
  return "";
}

std::byte* Endpoint::onHeader(Link&, const FrameHeader& header) {
  if (header.type != FrameType::kData || header.target != config_.rank) return nullptr;
  const auto flow = in_.find(flowOf(header));
  if (flow == in_.end() || !isCurrent(flow->second, header.generation)) return nullptr;
  Posted* posted = postedFor(flow->second, header.message);
  if (posted) posted->learnSize(header.message_bytes);
  if (!posted || posted->bytes != header.message_bytes ||
      posted->fingerprint != header.fingerprint || !fitsItsMessage(header)) {
    return nullptr;
  }
  return posted->data + header.offset;
}

void Endpoint::onFrame(Link& link, const FrameHeader& header, PayloadBuffer payload, bool placed) {
  if (const std::string wrong = wrongEnds(header); !wrong.empty()) {
    return failAll("link " + textOf(link.name()) + " carried a frame " + wrong, true);
  }
  if (header.type == FrameType::kData && !fitsItsMessage(header)) {
    return failAll("link " + textOf(link.name()) + " carried a frame that does not fit its message",
                   true);
  }
  if (header.type == FrameType::kLeave || header.type == FrameType::kFailure) {
    const std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
    return onFlooded(link, header, text);
  }
  if (header.type == FrameType::kHeartbeat) return;
  if (graph_ && header.type == FrameType::kCableState) return onCableState(link, header);
  if (graph_ && header.type == FrameType::kCableSpeed) return onCableSpeed(link, header);
  if (graph_ && header.type == FrameType::kLinkHello) return onLinkHello(link, header);
  if (header.target != config_.rank) return relay(header, std::move(payload));
  if (graph_ && header.type == FrameType::kLinkLost) return onLinkLost(header);
  switch (header.type) {
    case FrameType::kData:
      return onData(header, std::move(payload), placed);
    case FrameType::kAck:
      return onAck(header);
    case FrameType::kAckRequest:
      return onAckRequest(header);
    case FrameType::kCall:
    case FrameType::kStateAsk:
    case FrameType::kState:
    case FrameType::kLook:
    case FrameType::kRings:
    case FrameType::kRingsAnswer:
    case FrameType::kRingsStart:
      return onControl(header, {reinterpret_cast<const char*>(payload.data()), payload.size()});
    case FrameType::kRequestToSend:
      return onRequestToSend(header);
    case FrameType::kForget:
      return onForget(header, payload);
    default:
      return failAll("link " + textOf(link.name()) + " carried a frame of unknown type", true);
  }
}

void Endpoint::onAckRequest(const FrameHeader& header) {
  const FlowId id = flowOf(header);
  if (closed_channels_.contains(id.channel)) return acknowledgeEverything(id, header.generation);
  InFlow& flow = in_[id];
  if (!isCurrent(flow, header.generation)) return;  // its answer has come by other ways
  if (header.offset == 0) {
    flow.ack_at_once = true;
  } else {
    flow.requested = std::max(flow.requested, header.message);
    if (header.message_bytes < flow.acked) {
      logLine(LogLevel::kInfo, "rank " + std::to_string(id.peer) + " waits for " +
                                   std::to_string(flow.acked - header.message_bytes) +
                                   " bytes that were acknowledged: acknowledged again");
    }
  }
  acknowledge(id, flow);
  if (header.offset != 0) bindAnyReceives(id);
}

void Endpoint::onData(const FrameHeader& header, PayloadBuffer payload, bool placed) {
  const FlowId id = flowOf(header);
  if (closed_channels_.contains(id.channel)) return acknowledgeEverything(id, header.generation);
  InFlow& flow = in_[id];
  if (!isCurrent(flow, header.generation)) {
    return failAll("rank " + std::to_string(id.peer) +
                       " has sent a frame of a flow that it had "
                       "forgotten",
                   true);
  }
  Posted* posted = postedFor(flow, header.message);
  if (posted) {
    if (!placed) {
      // It was posted, or bound, while the payload was still being read; or the ends disagree.
      if (!posted->done) return;  // it has failed because the ends disagree
      posted->learnSize(header.message_bytes);
      Done done = std::exchange(posted->done, nullptr);
      if (!matches(id, posted->bytes, posted->fingerprint, header.message_bytes, header.fingerprint,
                   done)) {
        return;
      }
      posted->done = std::move(done);
      if (!payload.empty()) {
        std::memcpy(posted->data + header.offset, payload.data(), payload.size());
      }
    }
    posted->received += header.payload_bytes;
    posted->complete = posted->received == posted->bytes;
    consumed(id, flow, costOf(header.payload_bytes));
    return completeFront(id);
  }
  const bool first = keepEarly(id, flow, header, std::move(payload));
  if (first && header.stream < kFirstMessageStream) countEarly(header);
  bindAnyReceives(id);
}

void Endpoint::relay(const FrameHeader& header, PayloadBuffer payload) {
  const auto& hops = hopsTo(header.source, header.target);
  if (header.detour == 0 && (header.route >= hops.size() || hops[header.route].link == nullptr)) {
    return failAll("rank " + std::to_string(config_.rank) + " is not on route " +
                       std::to_string(header.route) + " from rank " +
                       std::to_string(header.source) + " to rank " + std::to_string(header.target),
                   true);
  }
  if (header.type == FrameType::kData && !mayRelay(header)) return;
  OutFrame frame;
  frame.header = header;
  frame.owned = std::move(payload);
  if (graph_) return dispatch(std::move(frame));  // also while a cable moves, which is not reported
  Link& link = *hops[header.route].link;
  if (header.type == FrameType::kData) {
    link.send(std::move(frame));
  } else {
    link.sendControl(std::move(frame));
  }
}

}  // namespace topoopt
