// Cables that are lost, and new connections for them.
//
// Both ends of a lost cable exchange, over other ways, how many frames have arrived; each sends
// again what the other one does not have, and so nothing is lost and nothing comes twice. An end
// counts only when it has read all that its transport has acknowledged, and acknowledges nothing
// more (Link::drop). Frames that were not yet written need not wait for that.
//
// A new connection begins with the same numbers in both directions (kLinkHello), so cables may come
// back that no other way goes around, and ends that missed a generation catch up.
//
// A cable that moves to another connection is not lost for other ranks: its ends make the same
// exchange by themselves, within a few round trips. The end that dials says so before (beginMove)
// and keeps the old connection until the other end, which has the new one first, closes it.

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "common/errors.h"
#include "common/log.h"
#include "transport/endpoint.h"

namespace topoopt {
namespace {

constexpr int kMostUnansweredTicks = 3;
// A system waits ever longer before it sends again what was lost; a new connection begins at once.
constexpr std::chrono::seconds kLongestStandstill{2};
constexpr std::chrono::seconds kSoonAgain{10};
constexpr int kMostQuietLooks = 8;  // in the silence limit
// In which a report reaches all ranks that it can reach.
constexpr std::chrono::milliseconds kReportTime{100};
constexpr int kMostJoiningTicks = 25;
// The same where other ranks are not notified meanwhile.
constexpr int kMostMovingTicks = 5;
// For the other end to go on over a new connection before the old one is given up here.
constexpr int kMostOldTicks = 2;
// From the first report of a change until groups are notified of it.
constexpr std::chrono::milliseconds kSettlingTime{50};
constexpr double kBytesPerSecondOfGbps = 1e9 / 8;
constexpr uint32_t kSpeedUnits = 1'000'000;  // that are 1

constexpr const char* kNoAnswer = "nothing is acknowledged";
constexpr const char* kStandstill = "its host answers, but what is sent does not arrive";

std::string stoppedText(int rank, std::chrono::milliseconds limit) {
  return "rank " + std::to_string(rank) +
         " is stopped: its host acknowledges, but the process has sent nothing for " +
         std::to_string(limit.count() / 1000) + " s";
}

FrameHeader heartbeat() {
  FrameHeader header;
  header.type = FrameType::kHeartbeat;
  return header;
}

FrameHeader numbersOf(FrameType type, int cable, uint64_t generation, uint64_t received,
                      uint64_t received_before) {
  FrameHeader header;
  header.type = type;
  header.stream = static_cast<uint64_t>(cable);
  header.message = generation;
  header.offset = received;
  header.message_bytes = received_before;
  return header;
}

FrameHeader headerOf(const CableReport& report) {
  FrameHeader header;
  header.type = FrameType::kCableState;
  header.source = static_cast<uint16_t>(report.end);
  header.stream = static_cast<uint64_t>(report.cable);
  header.message = report.number();
  header.offset = static_cast<uint64_t>(report.loss);
  return header;
}

FrameHeader headerOf(const CableSpeed& report) {
  FrameHeader header;
  header.type = FrameType::kCableSpeed;
  header.source = static_cast<uint16_t>(report.end);
  header.stream = static_cast<uint64_t>(report.cable);
  header.message = report.number;
  header.offset = static_cast<uint64_t>(report.speed * kSpeedUnits);
  return header;
}

std::string listOf(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

std::string lostText(const std::string& cables) {
  return cables.empty() ? "links between other ranks" : "the link " + cables;
}

std::string shortOf(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

void sendHeader(Link& link, const FrameHeader& header) {
  OutFrame frame;
  frame.header = header;
  link.sendControl(std::move(frame));
}

}  // namespace

void Endpoint::startCables() {
  if (config_.cables.empty()) return;
  graph_ =
      std::make_unique<CableGraph>(config_.rank, config_.size, config_.cables, config_.servers);
  for (size_t i = 0; i < links_.size(); ++i) {
    const LinkSpec& spec = config_.links[i];
    if (spec.cable == kNoCable) continue;
    const bool listed = spec.cable >= 0 && static_cast<size_t>(spec.cable) < config_.cables.size();
    if (!listed || !cables_.try_emplace(spec.cable, OwnCable{links_[i].get(), spec}).second) {
      throw std::invalid_argument(
          "links[" + std::to_string(i) + "].cable: " + std::to_string(spec.cable) +
          " is not another one of the " + std::to_string(config_.cables.size()) + " cables");
    }
  }
  cables_event_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!cables_event_) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void Endpoint::watchCables() {
  for (auto& [number, cable] : cables_) cable.interface = interfaceOf(cable.spec.fd);
  carriers_ = std::make_unique<CarrierWatch>(reactor_, [this](int index) { carrierLost(index); });
  tick();
}

// ---- a cable is lost ---------------------------------------------------------------------------

void Endpoint::cableLost(Link& link, Loss loss, const std::string& why) {
  OwnCable& cable = cables_.at(link.cable());
  const std::string name = textOf(link.name());
  if (std::exchange(cable.lost, true)) {
    logLine(LogLevel::kInfo, "a new connection of the link " + name + " is lost at once: " + why);
    link.takeUnwritten();  // a greeting
    reportLost(cable, loss);
  } else {
    cable.received = link.receivedFrames();
    cable.kept = link.takeKept();
    cable.settled = false;
    cable.unreported = true;
    if (cable.waiting_fd >= 0 || (cable.moving && loss == Loss::kClosed)) {
      logLine(LogLevel::kDebug, "the link " + name + " moves to another connection");
    } else {
      logLine(LogLevel::kWarning, "lost the link " + name + ": " + why);
      reportLost(cable, loss);
    }
    for (OutFrame& frame : link.takeUnwritten()) dispatch(std::move(frame));
    graphChanged();
  }
  if (const int fd = std::exchange(cable.waiting_fd, -1); fd >= 0) {
    joinCable(link.cable(), fd, std::move(cable.waiting_key));
  }
  signalCables();
}

// Notifies other ranks of a loss, if they are not yet.
void Endpoint::reportLost(OwnCable& cable, Loss loss) {
  cable.moving = false;
  if (!std::exchange(cable.unreported, false)) return;
  reportCable({cable.spec.cable, config_.rank, cable.generation, false, loss}, nullptr);
  sendLinkLost(cable, cable.generation);
  graphChanged();
}

void Endpoint::sendLinkLost(const OwnCable& cable, uint64_t generation) {
  OutFrame frame;
  frame.header =
      numbersOf(FrameType::kLinkLost, cable.spec.cable, generation,
                generation == cable.generation ? cable.received : 0, cable.received_before);
  frame.header.source = static_cast<uint16_t>(config_.rank);
  frame.header.target = static_cast<uint16_t>(cable.spec.peerRank());
  frame.header.detour = 1;
  dispatch(std::move(frame));
}

void Endpoint::onLinkLost(const FrameHeader& header) {
  const auto found = cables_.find(static_cast<int>(header.stream));
  if (found == cables_.end() || found->second.spec.peerRank() != header.source) return;
  OwnCable& cable = found->second;
  if (header.message == cable.generation) {
    if (!cable.lost) {
      cable.link->drop(Loss::kClosed, "the other end has lost it");
      // The handler of that comes first.
      reactor_.post([this, header] { onLinkLost(header); });
    } else if (!cable.settled) {
      settle(cable, header.offset);
    }
  } else if (header.message == cable.generation + 1 && cable.lost) {
    // A connection that only the other end took for established.
    if (!cable.settled) settle(cable, header.message_bytes);
    if (!cable.link->dead()) cable.link->drop(Loss::kClosed, "the other end has lost it");
    cable.received_before = cable.received;
    cable.received = 0;
    cable.generation = header.message;
    sendLinkLost(cable, cable.generation);
  }
}

// The other end has the first `received` frames of the connection.
void Endpoint::settle(OwnCable& cable, uint64_t received) {
  FrameQueue::Kept kept = std::exchange(cable.kept, {});
  cable.settled = true;
  if (received < kept.first || received - kept.first > kept.frames.size()) {
    return failAll("rank " + std::to_string(cable.spec.peerRank()) + " says that " +
                       std::to_string(received) + " frames have passed the link " +
                       textOf(cable.link->name()) + ", which cannot be",
                   true);
  }
  for (size_t i = received - kept.first; i < kept.frames.size(); ++i) {
    dispatch(std::move(kept.frames[i]));
  }
}

// ---- ways around -------------------------------------------------------------------------------

Link* Endpoint::usableLinkTo(int neighbour) const {
  for (size_t i = 0; i < links_.size(); ++i) {
    const LinkSpec& spec = config_.links[i];
    if (!spec.sends || spec.peerRank() != neighbour || !links_[i]->usable()) continue;
    if (spec.cable == kNoCable || graph_->carries(spec.cable, config_.rank)) return links_[i].get();
  }
  return nullptr;
}

// Where the frame goes from here, nullptr if there is no way. A route that cannot be kept is given
// up for good: ranks behind the gap may not be on it.
Link* Endpoint::wayTo(FrameHeader& header) {
  if (header.detour == 0) {
    const auto& hops = hopsTo(header.source, header.target);
    if (header.route < hops.size()) {
      const Hop& hop = hops[header.route];
      if (hop.link != nullptr && hop.whole && hop.link->usable()) return hop.link;
    }
    header.detour = 1;
  }
  const int next = graph_->nextHop(header.target);
  return next < 0 ? nullptr : usableLinkTo(next);
}

void Endpoint::dispatch(OutFrame frame) {
  const FrameType type = frame.header.type;
  if (isForOneLink(type) || isFlooded(type)) return;
  Link* const link = wayTo(frame.header);
  if (link == nullptr) {
    stranded_.push_back(std::move(frame));
  } else if (type == FrameType::kData) {
    link->send(std::move(frame));
  } else {
    link->sendControl(std::move(frame));
  }
}

// Passes on what is new.
void Endpoint::reportCable(const CableReport& report, const Link* except) {
  if (graph_->take(report)) flood(headerOf(report), "", except);
}

void Endpoint::onCableState(Link& link, const FrameHeader& header) {
  if (header.stream >= graph_->cables().size() || header.offset > uint64_t{UINT8_MAX}) return;
  reportCable({static_cast<int>(header.stream), header.source, header.message / 2,
               header.message % 2 == 0, static_cast<Loss>(header.offset)},
              &link);
  const auto own = cables_.find(static_cast<int>(header.stream));
  if (own != cables_.end()) confirmUp(own->second);
  graphChanged();
}

// Where the other end has reported a loss that this end has not, it waits for the report that the
// cable is up again.
void Endpoint::confirmUp(const OwnCable& cable) {
  const int number = cable.spec.cable;
  if (cable.lost) return;
  if (graph_->numberAt(number, cable.spec.peerRank()) <= graph_->numberAt(number, config_.rank)) {
    return;
  }
  reportCable({number, config_.rank, cable.generation, true, Loss::kClosed}, nullptr);
}

void Endpoint::graphChanged() {
  findWholeHops();
  announceChange();
  judgeReach();
}

void Endpoint::findWholeHops() {
  for (auto& [pair, hops] : hops_) {
    for (Hop& hop : hops) {
      const int cable = hop.link == nullptr ? kNoCable : hop.link->cable();
      hop.whole =
          hop.link == nullptr ||
          (hop.link->usable() && (cable == kNoCable || graph_->carries(cable, config_.rank)));
      if (pair.first != config_.rank || hop.route == nullptr) continue;
      const std::vector<int>& ranks = hop.route->servers;
      for (size_t i = 1; i < ranks.size(); ++i) {
        hop.whole = hop.whole && graph_->linked(ranks[i - 1], ranks[i]);
      }
    }
  }
  for (OutFrame& frame : std::exchange(stranded_, {})) dispatch(std::move(frame));
}

// Once for all reports that come together: both ends report, and a switch may lose many cables.
void Endpoint::announceChange() {
  if (std::exchange(change_announced_, true)) return;
  reactor_.after(kSettlingTime, [this] {
    change_announced_ = false;
    if (!failure_.empty()) return;
    const auto channels = channels_;  // owners may close theirs
    for (const auto& [number, channel] : channels) {
      if (channel.events.links_changed) channel.events.links_changed();
    }
  });
}

void Endpoint::reportSpeed(const CableSpeed& report, const Link* except) {
  if (!graph_->takeSpeed(report)) return;
  flood(headerOf(report), "", except);
  graphChanged();
}

void Endpoint::onCableSpeed(Link& link, const FrameHeader& header) {
  if (header.stream >= graph_->cables().size() || header.offset > uint64_t{kSpeedUnits}) return;
  reportSpeed({static_cast<int>(header.stream), header.source, header.message,
               static_cast<double>(header.offset) / kSpeedUnits},
              &link);
}

// Ranks whose connections were all closed by their systems are gone, as soon as reports that are on
// their way cannot say otherwise; others may come back. Where no lost cable leads from the ranks on
// this side to the others, as in a ring that sends one way, it is ranks nearer to the gap that
// judge.
void Endpoint::judgeReach() {
  if (cut_timer_) reactor_.cancel(*std::exchange(cut_timer_, std::nullopt));
  if (graph_->unreachable().empty() || !failure_.empty()) {
    cut_since_.reset();
    return;
  }
  const CableGraph::Cut cut = graph_->cut();
  const auto now = Reactor::Clock::now();
  if (!cut_since_) {
    cut_since_ = now;
    logLine(LogLevel::kWarning,
            listOf(graph_->unreachable()) + " cannot be reached: lost " + lostText(cut.cables));
  }
  const bool gone = !cut.gone.empty() && cut.silent.empty();
  const auto limit = *cut_since_ + (gone ? kReportTime : config_.silence_limit);
  if (now >= limit) return failUnreachable(cut);
  cut_timer_ = reactor_.at(limit, [this] {
    cut_timer_.reset();
    judgeReach();
  });
}

void Endpoint::failUnreachable(const CableGraph::Cut& cut) {
  if (!cut.gone.empty()) {
    return failAll(listOf(cut.gone) + (cut.gone.size() == 1 ? " is" : " are") + " gone: lost " +
                       lostText(cut.cables),
                   true);
  }
  failAll(listOf(graph_->unreachable()) + (graph_->unreachable().size() == 1 ? " is" : " are") +
              " unreachable: lost " + lostText(cut.cables),
          true);
}

// ---- a cable comes back ------------------------------------------------------------------------

void Endpoint::signalCables() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(cables_event_.get(), &one, sizeof one);
}

std::vector<int> Endpoint::lostCables() {
  std::vector<int> list;
  reactor_.run([&] {
    if (!failure_.empty() || (leaving_ && leaving_->closing)) return;
    for (const auto& [number, cable] : cables_) {
      if (cable.lost && cable.link->dead()) list.push_back(number);
    }
  });
  return list;
}

std::vector<int> Endpoint::slowCables() {
  std::vector<int> list;
  reactor_.run([&] {
    for (const auto& [number, cable] : cables_) {
      if (cable.rate.isSlow()) list.push_back(number);
    }
  });
  return list;
}

bool Endpoint::beginMove(int cable) {
  bool begun = false;
  reactor_.run([&] {
    const auto found = cables_.find(cable);
    if (found == cables_.end() || !failure_.empty() || (leaving_ && leaving_->closing)) return;
    if (found->second.lost || !found->second.link->usable()) return;
    found->second.link->leaveNothing(true);
    begun = found->second.moving = true;
  });
  return begun;
}

void Endpoint::endMove(int cable) {
  reactor_.run([&] {
    const auto found = cables_.find(cable);
    if (found == cables_.end() || !found->second.moving) return;
    found->second.moving = false;
    found->second.link->leaveNothing(false);
    if (found->second.lost) {
      logLine(LogLevel::kWarning, "lost the link " + textOf(found->second.link->name()) +
                                      ": the connection that it was to move to has failed");
      reportLost(found->second, Loss::kClosed);
      signalCables();
    }
  });
}

void Endpoint::limitCable(int cable, std::optional<uint64_t> bytes_per_s) {
  reactor_.run([&] {
    const auto found = cables_.find(cable);
    if (found != cables_.end()) found->second.link->limitRate(bytes_per_s);
  });
}

void Endpoint::replaceCable(int cable, int fd, std::string tls_key) {
  const auto found = cables_.find(cable);
  if (found != cables_.end() && found->second.spec.tls_key.empty() != tls_key.empty()) {
    Descriptor{fd};
    throw std::invalid_argument("tls_key: cable " + std::to_string(cable) + " was opened " +
                                (tls_key.empty() ? "with" : "without") + " one");
  }
  reactor_.run([&] { joinCable(cable, fd, std::move(tls_key)); });
}

void Endpoint::joinCable(int number, int fd, std::string tls_key) {
  const auto found = cables_.find(number);
  if (found == cables_.end() || !failure_.empty() || (leaving_ && leaving_->closing)) {
    Descriptor{fd};
    return;
  }
  OwnCable& cable = found->second;
  // Else it is lost soon, or its loss is known but not yet handled.
  if (!cable.link->dead() || !cable.lost) {
    if (cable.waiting_fd >= 0) Descriptor{cable.waiting_fd};
    cable.waiting_fd = fd;
    cable.waiting_key = std::move(tls_key);
    cable.old_ticks = 0;
    // Of a move from here, the other end closes the old connection when it has the new one.
    if (!cable.moving) cable.link->drop(Loss::kClosed, "the other end has opened it anew");
    return;
  }
  LinkSpec spec = cable.spec;
  spec.fd = fd;
  spec.tls_key = std::move(tls_key);
  cable.joining_ticks = 0;
  OutFrame hello;
  hello.header = numbersOf(FrameType::kLinkHello, number, cable.generation, cable.received,
                           cable.received_before);
  cable.interface = interfaceOf(fd);
  cable.link->reopen(spec);
  cable.link->sendControl(std::move(hello));
}

void Endpoint::onLinkHello(Link& link, const FrameHeader& header) {
  if (link.cable() == kNoCable || link.usable()) return;
  OwnCable& cable = cables_.at(link.cable());
  const uint64_t theirs = header.message;
  if (!cable.settled) {
    // What the other end has received in this end's last generation, which it may not have known,
    // or may have left behind.
    settle(cable, theirs == cable.generation  ? header.offset
                  : theirs < cable.generation ? 0
                                              : header.message_bytes);
    if (!failure_.empty()) return;
  }
  cable.received_before = theirs > cable.generation ? 0 : cable.received;
  cable.received = 0;
  cable.generation = std::max(theirs, cable.generation) + 1;
  cable.lost = false;
  cable.quiet_ticks = cable.unanswered_ticks = cable.standing_ticks = 0;
  link.establish();
  const bool moved = std::exchange(cable.unreported, false);
  cable.moving = false;
  if (moved) {
    logLine(LogLevel::kInfo, "the link " + textOf(link.name()) + " has moved");
    confirmUp(cable);
    if (cable.rate.trust())
      reportSpeed({link.cable(), config_.rank, ++cable.speed_reports}, nullptr);
  } else {
    logLine(LogLevel::kWarning, "the link " + textOf(link.name()) + " is back");
    reportCable({link.cable(), config_.rank, cable.generation, true, Loss::kClosed}, nullptr);
  }
  cable.rate.restart();
  // What was flooded while the two ends were apart.
  for (const CableReport& report : graph_->reports()) sendHeader(link, headerOf(report));
  for (const CableSpeed& report : graph_->speeds()) sendHeader(link, headerOf(report));
  for (const int rank : left_) {
    FrameHeader header;
    header.type = FrameType::kLeave;
    header.source = static_cast<uint16_t>(rank);
    sendHeader(link, header);
  }
  if (moved) {
    findWholeHops();  // the graph is what it was
  } else {
    graphChanged();
  }
}

// ---- carriers and silence ----------------------------------------------------------------------

void Endpoint::carrierLost(int interface) {
  for (auto& [number, cable] : cables_) {
    if (cable.interface == interface) cable.link->drop(Loss::kCarrier, "its interface is down");
  }
}

void Endpoint::holdCables() { ++cables_held_; }

// What was seen before is of no use any more.
void Endpoint::letCablesGo() {
  if (--cables_held_ > 0) return;
  for (auto& [number, cable] : cables_) {
    cable.quiet_ticks = cable.unanswered_ticks = cable.standing_ticks = 0;
    cable.rate.restart();
  }
  for (Neighbour& neighbour : neighbours_) neighbour.quiet_looks = 0;
}

bool Endpoint::answers(int neighbour) {
  for (size_t i = 0; i < links_.size(); ++i) {
    const LinkSpec& spec = config_.links[i];
    if (!spec.sends || spec.peerRank() != neighbour || !links_[i]->usable()) continue;
    if (links_[i]->acknowledged() != Acknowledged::kAdvances) return false;
  }
  return true;
}

bool Endpoint::quiet() {
  bool all = true;
  for (const auto& link : links_) {
    link->acknowledgeAtOnce();
    all = all && (!link->usable() || link->delivered());
  }
  return all;
}

void Endpoint::tick() {
  for (auto& [number, cable] : cables_) {
    if (cables_held_ > 0) break;
    tickCable(cable);
    if (!failure_.empty()) return;
  }
  reactor_.after(config_.cable_tick, [this] { tick(); });
}

// The number of cables that go through an interface, to a switch. Each of them may have to wait for
// what all others have sent: here, and where it arrives, at the switch.
int Endpoint::cablesAt(int interface) const {
  if (interface == 0) return 1;
  return static_cast<int>(std::ranges::count_if(
      cables_, [=](const auto& entry) { return entry.second.interface == interface; }));
}

// Those of them that send.
int Endpoint::sendersAt(int interface) const {
  if (interface == 0) return 1;
  return static_cast<int>(std::ranges::count_if(cables_, [=](const auto& entry) {
    return entry.second.interface == interface && entry.second.spec.sends;
  }));
}

// Why what is sent does not arrive; nullptr if it does. A cable of which this is said twice within
// a short time is used again only as long after as a slow one: small packets, with which it is
// opened, may pass where large ones do not.
const char* Endpoint::standstillOf(OwnCable& cable) {
  const Acknowledged acknowledged = cable.link->acknowledged();
  cable.unanswered_ticks = acknowledged == Acknowledged::kNothing ? cable.unanswered_ticks + 1 : 0;
  cable.standing_ticks = acknowledged == Acknowledged::kAdvances ? 0 : cable.standing_ticks + 1;
  const auto limit =
      std::min<std::chrono::milliseconds>(kLongestStandstill, config_.silence_limit / 2);
  const bool silent = cable.unanswered_ticks >= kMostUnansweredTicks * cablesAt(cable.interface);
  const bool stands = cable.standing_ticks * config_.cable_tick >= limit;
  if (!silent && !stands) return nullptr;
  const auto now = Reactor::Clock::now();
  const auto before = std::exchange(cable.last_standstill, std::optional(now));
  if (stands || (before && now - *before < kSoonAgain)) {
    const double speed = cable.rate.distrust(now);
    reportSpeed({cable.spec.cable, config_.rank, ++cable.speed_reports, speed}, nullptr);
    signalCables();
  }
  return silent ? kNoAnswer : kStandstill;
}

// What is sent must be acknowledged by the neighbour's system, however slowly the cable carries it;
// and its process, which sends something in every tick, must be heard of now and then.
void Endpoint::tickCable(OwnCable& cable) {
  Link& link = *cable.link;
  if (link.dead()) return;
  if (!link.usable()) {
    const int most = cable.unreported ? kMostMovingTicks : kMostJoiningTicks;
    if (++cable.joining_ticks > most) link.drop(Loss::kSilent, "no greeting");
    return;
  }
  if (cable.waiting_fd >= 0 && ++cable.old_ticks > kMostOldTicks) {
    return link.drop(Loss::kClosed, "a new connection is there");
  }
  if (const char* why = standstillOf(cable)) return link.drop(Loss::kSilent, why);
  cable.quiet_ticks = link.takeReceived() ? 0 : cable.quiet_ticks + 1;
  if (cable.quiet_ticks * config_.cable_tick >= config_.silence_limit) {
    return failAll(stoppedText(cable.spec.peerRank(), config_.silence_limit), true);
  }
  link.lookForAcknowledgements();
  watchRate(cable);
  if (!link.takeWrote()) sendHeader(link, heartbeat());
}

// A neighbour whose link is no cable cannot be reached another way: it is silent for whatever
// reason, and fails all.
void Endpoint::watchNeighbours() {
  for (size_t i = 0; i < links_.size(); ++i) {
    const LinkSpec& spec = config_.links[i];
    // In the memory of one process all ends stop together.
    if (spec.cable == kNoCable && spec.kind != LinkKind::kMemory) {
      neighbours_.push_back({links_[i].get(), spec.peerRank()});
    }
  }
  if (!neighbours_.empty()) lookAtNeighbours();
}

void Endpoint::lookAtNeighbours() {
  if (!failure_.empty()) return;
  for (Neighbour& of : neighbours_) {
    if (of.link->dead() || cables_held_ > 0) continue;
    of.quiet_looks = of.link->takeReceived() ? 0 : of.quiet_looks + 1;
    if (of.quiet_looks > kMostQuietLooks) {
      return failAll(of.link->acknowledged() != Acknowledged::kNothing
                         ? stoppedText(of.rank, config_.silence_limit)
                         : "rank " + std::to_string(of.rank) + " is unreachable: " + kNoAnswer,
                     true);
    }
    if (!of.link->takeWrote()) sendHeader(*of.link, heartbeat());
  }
  reactor_.after(config_.silence_limit / kMostQuietLooks, [this] { lookAtNeighbours(); });
}

// What a cable should carry, by the plan's rates and by what part of theirs other cables of this
// rank carry: one that was slow from the first large message on has no better rate of its own.
// Where all wait for that one, the others have but short messages, for which a part above 1 is no
// evidence.
double Endpoint::usualRate(const OwnCable& cable) const {
  const auto planned = [this](const OwnCable& of) {
    return graph_->cables()[of.spec.cable].rate * kBytesPerSecondOfGbps;
  };
  double part = 0;
  for (const auto& [number, other] : cables_) {
    if (planned(other) <= 0) continue;  // over cables of others
    part = std::max({part, other.rate.bestBytesPerSecond() / planned(other),
                     std::min(1.0, other.rate.bestBurstBytesPerSecond() / planned(other))});
  }
  return part * planned(cable);
}

// A slow cable is reported to all ranks, whose groups change their rings.
void Endpoint::watchRate(OwnCable& cable) {
  // What a cable carries that shares its interface depends on what the others carry.
  if (!cable.spec.sends || sendersAt(cable.interface) > 1) return;
  const auto change =
      cable.rate.look(cable.link->sendProgress(), Reactor::Clock::now(), usualRate(cable));
  if (!change) return;
  const bool slow = change->speed < 1;
  std::string text = "the link " + textOf(cable.link->name());
  text += slow ? " is slow: it carries " + shortOf(change->speed * change->usual * 8e-6) + " of " +
                     shortOf(change->usual * 8e-6) + " Mb/s"
               : " is tried at its usual rate";
  if (change->lost_part > 0) {
    text += ", as " + shortOf(100 * change->lost_part) + " % of its packets are lost";
  }
  logLine(slow ? LogLevel::kWarning : LogLevel::kInfo, text);
  reportSpeed({cable.spec.cable, config_.rank, ++cable.speed_reports, change->speed}, nullptr);
  signalCables();
}

}  // namespace topoopt
