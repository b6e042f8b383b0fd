#include "transport/endpoint/endpoint.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <utility>

#include "common/errors.h"
#include "common/log.h"
#include "transport/descriptor.h"
#include "transport/endpoint/open_link.h"

namespace topoopt {
namespace {

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
      routes_(config_.rank, links_, config_.routes, graph_.get(), limits_, buffers_, fail_job_),
      end_(config_.rank, config_.size, reactor_, links_, routes_, *this),
      status_(end_.status()),
      channels_(reactor_, routes_),
      out_(config_.rank, config_.size, config_.window_bytes, limits_, routes_),
      in_(config_.rank, config_.size, limits_, links_, routes_, status_, fail_job_),
      neighbours_(config_.silence_limit, reactor_, links_, status_, fail_job_) {
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
  reports_ = std::make_unique<CableReports>(config_.rank, config_.silence_limit, reactor_, *graph_,
                                            routes_, status_, fail_job_,
                                            [this] { channels_.linksChanged(); });
  const LocalCables::Config config{config_.rank, config_.cable_tick, config_.silence_limit};
  cables_ = std::make_unique<LocalCables>(config, reactor_, links_, *graph_, routes_, *reports_,
                                          status_, fail_job_);
}

void Endpoint::tick() {
  cables_->tick();
  if (status_.failed()) return;
  out_.remindReceivers();
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

// ---- messages ----------------------------------------------------------------------------------

void Endpoint::send(const FlowId& flow, const void* data, size_t bytes, uint64_t fingerprint,
                    Done done, bool prompt, std::shared_ptr<Routes::Ways> own_ways) {
  if (status_.failed()) return done(peerLost(status_.failure));
  if (status_.hasLeft(flow.peer)) return done(peerLost(JobStatus::leftText(flow.peer)));
  Routes::Ways* const ways = routes_.waysTo(flow.peer);
  if (ways == nullptr) {
    return done(peerLost("the plan has no route to rank " + std::to_string(flow.peer)));
  }
  const auto iteration = static_cast<uint16_t>(iteration_.load());
  if (flow.channel < kFirstProbeChannel) own_iterations_.add(iteration, bytes);
  auto progress = std::make_shared<SendProgress>(SendProgress{bytes, std::move(done), prompt});
  out_.send(flow, *ways,
            {data, bytes, fingerprint, iteration, std::move(progress), std::move(own_ways)});
}

void Endpoint::hurry(uint32_t channel) {
  if (!graph_) return;  // nothing is kept
  out_.hurry(channel);
  for (const auto& [spec, link] : links_) link->hurry(channel);
}

void Endpoint::receive(const FlowId& flow, void* data, size_t bytes, uint64_t fingerprint,
                       Done done) {
  in_.post(flow, {data, bytes, fingerprint, std::move(done)});
}

void Endpoint::receiveUpTo(const FlowId& flow, void* data, size_t capacity, uint64_t fingerprint,
                           size_t* bytes, Done done) {
  in_.post(flow, {data, capacity, fingerprint, std::move(done), bytes});
}

void Endpoint::receiveAny(const std::vector<int>& peers, uint32_t channel, uint64_t stream,
                          void* data, size_t bytes, uint64_t fingerprint,
                          std::function<void(int)> from, Done done) {
  in_.postAny({peers, channel, stream, std::move(from),
               InFlows::ReceiveBuffer{data, bytes, fingerprint, std::move(done)}});
}

// ---- frames ------------------------------------------------------------------------------------

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
  return in_.placeFor(header);
}

void Endpoint::onFrame(Link& link, const FrameHeader& header, PayloadBuffer payload, bool placed) {
  if (const std::string wrong = wrongEnds(header); !wrong.empty()) {
    return end_.failAll("link " + textOf(link.name()) + " carried a frame " + wrong);
  }
  if (header.type == FrameType::kData && !fitsItsMessage(header)) {
    return end_.failAll("link " + textOf(link.name()) +
                        " carried a frame that does not fit its message");
  }
  const auto text = [&payload] {
    return std::string(reinterpret_cast<const char*>(payload.data()), payload.size());
  };
  if (header.type == FrameType::kLeave || header.type == FrameType::kFailure) {
    return end_.onFlooded(link, header, text());
  }
  if (header.type == FrameType::kHeartbeat) return;
  if (cables_ && header.type == FrameType::kCableState) return cables_->onState(link, header);
  if (reports_ && header.type == FrameType::kCableSpeed) return reports_->onSpeed(link, header);
  if (cables_ && header.type == FrameType::kLinkHello) return cables_->onLinkHello(link, header);
  if (header.target != config_.rank) return routes_.relay(header, std::move(payload));
  if (cables_ && header.type == FrameType::kLinkLost) return cables_->onLinkLost(header);
  switch (header.type) {
    case FrameType::kData:
      if (channels_.isClosed(header.channel)) return in_.refuse(header);
      if (in_.onData(header, std::move(payload), placed)) channels_.reportIfOver(header);
      return;
    case FrameType::kAck:
      out_.onAck(header, channels_.isClosed(header.channel));
      return end_.continueLeaving();
    case FrameType::kAckRequest:
      if (channels_.isClosed(header.channel)) return in_.refuse(header);
      return in_.onAckRequest(header);
    case FrameType::kCall:
    case FrameType::kStateRequest:
    case FrameType::kState:
    case FrameType::kLook:
    case FrameType::kSizes:
    case FrameType::kRings:
    case FrameType::kRingsAnswer:
    case FrameType::kRingsStart:
      return channels_.onControl(header, text());
    case FrameType::kRequestToSend:
      if (channels_.isClosed(header.channel)) return in_.refuse(header);
      if (in_.onRequestToSend(header)) channels_.reportIfOver(header);
      return;
    case FrameType::kForget:
      return in_.onForget(header, payload);
    default:
      return end_.failAll("link " + textOf(link.name()) + " carried a frame of unknown type");
  }
}

// ---- channels ----------------------------------------------------------------------------------

void Endpoint::openChannel(uint32_t channel, ChannelEvents events) {
  if (status_.failed()) return events.failed(peerLost(status_.failure));
  if (channels_.isClosed(channel)) return events.failed(peerLost(channels_.whyClosed(channel)));
  channels_.open(channel, std::move(events));
  if (graph_ && !graph_->intact()) reports_->announce();
  for (const int rank : std::set<int>(status_.left)) channels_.left(channel, rank);
}

void Endpoint::finishCall(uint32_t channel, uint64_t number) {
  if (!channels_.finishCall(channel, number)) return;
  const auto call = static_cast<uint32_t>(number);
  const std::optional<int> sender = in_.senderWithoutReceive(channel, call);
  if (sender) channels_.reportUnmatched(channel, *sender, call);
}

void Endpoint::closeChannel(uint32_t channel, const std::string& why) {
  if (!channels_.close(channel, why)) return;
  if (const auto oldest = channels_.forgetOldest()) end_.forgetChannel(*oldest);
  routes_.dropOwn(channel, [this](const FrameHeader& header) { out_.onDropped(header); });
  in_.closeChannel(channel);
  out_.closeChannel(channel);
}

void Endpoint::failChannel(uint32_t channel, const std::string& why, bool broadcast) {
  closeChannel(channel, why);
  out_.failChannel(channel);
  if (broadcast) end_.broadcastFailure(channel, why);
}

// ---- the end -----------------------------------------------------------------------------------

void Endpoint::onLost(Link& link, Loss loss, const std::string& why) {
  // Not at once: this may be in the middle of a send.
  const auto delay = link.holds() ? kLateTime : std::chrono::milliseconds(0);
  reactor_.after(delay, [this, &link, loss, why] {
    if (end_.allLeft()) return end_.continueLeaving();
    if (status_.failed()) return;
    if (link.cable() != kNoCable && !link.dead()) return;  // it already has a new connection
    if (link.cable() != kNoCable && cables_) return cables_->onLost(link, loss, why);
    end_.failAll("lost the link " + textOf(link.name()) + ": " + why);
  });
}

void Endpoint::onJobFailed(const std::string& why) { channels_.failAll(why); }

void Endpoint::onChannelFailed(uint32_t channel, const std::string& why) {
  const auto failed = channels_.failureHandler(channel);
  if (!failed) return closeChannel(channel, why);
  failed(peerLost(why));
}

void Endpoint::onRankLeft(int rank) {
  std::set<uint32_t> waiting = in_.waitingFor(rank);
  waiting.merge(out_.giveUp(rank));
  for (const uint32_t channel : waiting) {
    const auto failed = channels_.failureHandler(channel);
    if (!failed) continue;
    const std::string why = JobStatus::leftText(rank);
    failChannel(channel, why, true);
    failed(peerLost(why));
  }
  channels_.left(rank);
}

// ---- counters ----------------------------------------------------------------------------------

std::vector<LinkTraffic> Endpoint::traffic() {
  std::vector<LinkTraffic> list;
  reactor_.run([&] { list = trafficOnLoop(); });
  return list;
}

std::vector<LinkTraffic> Endpoint::trafficOnLoop() const {
  std::vector<LinkTraffic> list;
  for (size_t i = 0; i < links_.size(); ++i) {
    const auto& [spec, link] = links_[i];
    list.push_back({spec.link, link->counters(), spec.kind, spec.sends, spec.cable, end_.wasUp(i)});
  }
  return list;
}

std::vector<std::vector<uint64_t>> Endpoint::iterationBytes(uint64_t first, size_t count) {
  std::vector<std::vector<uint64_t>> list;
  reactor_.run([&] {
    for (const auto& [spec, link] : links_) list.push_back(link->iterations().from(first, count));
  });
  return list;
}

std::vector<uint64_t> Endpoint::ownIterationBytes(uint64_t first, size_t count) {
  std::vector<uint64_t> list;
  reactor_.run([&] { list = own_iterations_.from(first, count); });
  return list;
}

size_t Endpoint::rememberedEntries() {
  size_t entries = 0;
  reactor_.run([&] {
    entries = out_.rememberedEntries() + in_.rememberedEntries() + channels_.rememberedEntries() +
              end_.rememberedEntries();
  });
  return entries;
}

HeldMemory Endpoint::heldMemory() {
  HeldMemory memory;
  reactor_.run([&] {
    memory.relayed = buffers_.relayed();
    memory.early = in_.early();
    memory.buffers = buffers_.held;
  });
  return memory;
}

}  // namespace topoopt
