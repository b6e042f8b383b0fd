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

// Owns all descriptors from here on, also if one of them cannot be opened.
OpenLinks openLinks(const EndpointConfig& config, const Link::Context& context) {
  OpenLinks links;
  size_t next = 0;
  try {
    for (; next < config.links.size(); ++next) {
      links.push_back({config.links[next], openLink(config.links[next], context)});
    }
    checkConfig(config);
  } catch (...) {
    for (++next; next < config.links.size(); ++next) Descriptor(config.links[next].fd);
    context.reactor.stop();  // before the links go
    throw;
  }
  return links;
}

std::unique_ptr<CableGraph> graphOf(const EndpointConfig& config) {
  if (config.cables.empty()) return nullptr;
  return std::make_unique<CableGraph>(config.rank, config.size, config.cables, config.servers);
}

}  // namespace

Endpoint::Endpoint(EndpointConfig config)
    : config_(std::move(config)),
      limits_(FlowLimits::of(config_.size, config_.window_bytes, config_.memory_bytes)),
      workers_(config_.workers > 0 ? std::make_unique<WorkerPool>(config_.workers) : nullptr),
      links_(openLinks(config_, {config_.rank, reactor_, buffers_, *this})),
      graph_(graphOf(config_)),
      routes_(config_.rank, links_, config_.routes, graph_.get(), limits_, buffers_,
              [this](const std::string& why) { end_.failAll(why); }),
      end_(config_.rank, config_.size, reactor_, links_, routes_, *this),
      status_(end_.status()),
      peers_(static_cast<size_t>(config_.size)),
      neighbours_(config_.silence_limit, reactor_, links_, status_,
                  [this](const std::string& why) { end_.failAll(why); }) {
  if (graph_) startCables();
  try {
    reactor_.run([this] {
      for (const auto& [spec, link] : links_) link->start();
      if (cables_) {
        cables_->start();
        tick();
      }
      neighbours_.start();
    });
  } catch (...) {
    reactor_.stop();  // before what it watches goes
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
    end_.failHere("the endpoint was closed");
    for (const auto& [spec, link] : links_) link->close();
    if (cables_) cables_->stop();
  });
  reactor_.stop();
}

// ---- cables ------------------------------------------------------------------------------------

void Endpoint::startCables() {
  const auto fail = [this](const std::string& why) { end_.failAll(why); };
  reports_ = std::make_unique<CableReports>(config_.rank, config_.silence_limit, reactor_, *graph_,
                                            routes_, status_, fail, [this] {
                                              const auto channels = channels_;  // owners may close
                                              for (const auto& [number, channel] : channels) {
                                                if (channel.events.links_changed)
                                                  channel.events.links_changed();
                                              }
                                            });
  cables_ = std::make_unique<LocalCables>(
      LocalCables::Config{config_.rank, config_.cable_tick, config_.silence_limit}, reactor_,
      links_, *graph_, routes_, *reports_, status_, fail);
}

void Endpoint::tick() {
  cables_->tick();
  if (status_.failed()) return;
  remindReceivers();
  reactor_.after(config_.cable_tick, [this] { tick(); });
}

void Endpoint::holdCables() {
  if (cables_held_++ > 0) return;
  if (cables_) cables_->hold();
  neighbours_.hold();
}

void Endpoint::letCablesGo() {
  if (--cables_held_ > 0) return;
  if (cables_) cables_->letGo();
  neighbours_.letGo();
}

bool Endpoint::answers(int neighbour) {
  for (const auto& [spec, link] : links_) {
    if (!spec.sends || spec.peerRank() != neighbour || !link->usable()) continue;
    if (link->acknowledged() != Acknowledged::kAdvances) return false;
  }
  return true;
}

bool Endpoint::quiet() {
  bool all = true;
  for (const auto& [spec, link] : links_) {
    link->acknowledgeAtOnce();
    all = all && (!link->usable() || link->delivered());
  }
  return all;
}

void Endpoint::onCables(const std::function<void(LocalCables&)>& function) {
  reactor_.run([&] {
    if (cables_) function(*cables_);
  });
}

std::vector<int> Endpoint::lostCables() {
  std::vector<int> list;
  onCables([&](LocalCables& cables) { list = cables.lost(); });
  return list;
}

std::vector<int> Endpoint::slowCables() {
  std::vector<int> list;
  onCables([&](LocalCables& cables) { list = cables.slow(); });
  return list;
}

bool Endpoint::beginMove(int cable) {
  bool begun = false;
  onCables([&](LocalCables& cables) { begun = cables.beginMove(cable); });
  return begun;
}

void Endpoint::endMove(int cable) {
  onCables([=](LocalCables& cables) { cables.endMove(cable); });
}

void Endpoint::limitCable(int cable, std::optional<uint64_t> bytes_per_s) {
  onCables([=](LocalCables& cables) { cables.limitRate(cable, bytes_per_s); });
}

void Endpoint::replaceCable(int cable, int fd, std::string tls_key) {
  if (!cables_) {
    Descriptor{fd};
    return;
  }
  reactor_.run([&] { cables_->replace(cable, fd, std::move(tls_key)); });
}

// ---- sending -----------------------------------------------------------------------------------

void Endpoint::send(const FlowId& flow, const void* data, size_t bytes, uint64_t fingerprint,
                    Done done, bool prompt) {
  if (status_.failed()) return done(peerLost(status_.failure));
  if (status_.hasLeft(flow.peer)) return done(peerLost(JobStatus::leftText(flow.peer)));
  const Routes::Ways* const ways = routes_.waysTo(flow.peer);
  if (ways == nullptr) {
    return done(peerLost("the plan has no route to rank " + std::to_string(flow.peer)));
  }
  const auto iteration = static_cast<uint16_t>(iteration_.load());
  if (flow.channel < kFirstProbeChannel) own_iterations_.add(iteration, bytes);
  const auto [entry, begins] = out_.try_emplace(flow);
  OutFlow& out = entry->second;
  if (begins) out.generation = peers_[flow.peer].generation;
  out.relayed = ways->relayed();
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
  for (const auto& [spec, link] : links_) link->hurry(channel);
}

void Endpoint::pump(const FlowId& id, OutFlow& flow) {
  Routes::Ways& ways = *routes_.waysTo(id.peer);
  while (!flow.pending.empty() && flow.sent - flow.acked < config_.window_bytes) {
    const std::optional<size_t> allowed = allowance(id, flow);
    if (!allowed) return;
    OutMessage& message = flow.pending.front();
    const size_t left = message.bytes - message.framed;
    const size_t route = ways.next();
    const size_t payload = std::min({left, ways.framePayload(message.bytes, route), *allowed});
    ways.charge(route, payload);
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
    routes_.send(ways, std::move(frame));
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
  if (status_.failed()) return wanted.done(peerLost(status_.failure));
  InFlow& flow = in_[id];
  const uint64_t number = flow.base + flow.posted.size();
  const auto early = flow.early.find(number);
  if (early == flow.early.end() && status_.hasLeft(id.peer)) {
    return wanted.done(peerLost(JobStatus::leftText(id.peer)));
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
  if (status_.failed()) return done(peerLost(status_.failure));
  for (int peer : peers) {
    const FlowId id{peer, channel, stream};
    const auto flow = in_.find(id);
    if (flow == in_.end() || !flow->second.hasNext()) continue;
    from(peer);
    return receive(id, data, bytes, fingerprint, std::move(done));
  }
  if (allLeft(peers)) return done(peerLost(JobStatus::leftText(peers.back())));
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
  if (from_here && header.type == FrameType::kLeave && !status_.hasLeft(config_.rank)) {
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
    return end_.failAll("link " + textOf(link.name()) + " carried a frame " + wrong);
  }
  if (header.type == FrameType::kData && !fitsItsMessage(header)) {
    return end_.failAll("link " + textOf(link.name()) +
                        " carried a frame that does not fit its message");
  }
  if (header.type == FrameType::kLeave || header.type == FrameType::kFailure) {
    const std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
    return end_.onFlooded(link, header, text);
  }
  if (header.type == FrameType::kHeartbeat) return;
  if (cables_ && header.type == FrameType::kCableState) return cables_->onState(link, header);
  if (reports_ && header.type == FrameType::kCableSpeed) return reports_->onSpeed(link, header);
  if (cables_ && header.type == FrameType::kLinkHello) return cables_->onLinkHello(link, header);
  if (header.target != config_.rank) return routes_.relay(header, std::move(payload));
  if (cables_ && header.type == FrameType::kLinkLost) return cables_->onLinkLost(header);
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
      return end_.failAll("link " + textOf(link.name()) + " carried a frame of unknown type");
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
    return end_.failAll("rank " + std::to_string(id.peer) +
                        " has sent a frame of a flow that it had "
                        "forgotten");
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

}  // namespace topoopt
