#include "transport/endpoint/local_cables.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "common/log.h"
#include "transport/endpoint/neighbour_watch.h"

namespace topoopt {
namespace {

constexpr int kMostUnansweredTicks = 3;
// A system waits ever longer before it sends again what was lost; a new connection begins at once.
constexpr std::chrono::seconds kLongestStandstill{2};
constexpr std::chrono::seconds kSoonAgain{10};
constexpr int kMostJoiningTicks = 25;
// The same where other ranks are not notified meanwhile.
constexpr int kMostMovingTicks = 5;
// For the other end to go on over a new connection before the old one is given up here.
constexpr int kMostOldTicks = 2;

constexpr const char* kStandstill = "its host answers, but what is sent does not arrive";

FrameHeader headerOf(FrameType type, int cable, const CableCounts& counts) {
  FrameHeader header;
  header.type = type;
  header.stream = static_cast<uint64_t>(cable);
  header.message = counts.generation;
  header.offset = counts.received;
  header.message_bytes = counts.received_before;
  return header;
}

CableCounts countsOf(const FrameHeader& header) {
  return {header.message, header.offset, header.message_bytes};
}

}  // namespace

LocalCables::LocalCables(const Config& config, Reactor& reactor, const OpenLinks& links,
                         const CableGraph& graph, Routes& routes, CableReports& reports,
                         const JobStatus& status, FailJob fail)
    : config_(config),
      reactor_(reactor),
      graph_(graph),
      routes_(routes),
      reports_(reports),
      status_(status),
      fail_(std::move(fail)),
      rates_(graph,
             [this](int cable, double speed) {
               reports_.reportSpeed(cable, speed);
               signal();
             }),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw std::system_error(errno, std::generic_category(), "eventfd");
  const size_t count = graph.cables().size();
  for (size_t i = 0; i < links.size(); ++i) {
    const auto& [spec, link] = links[i];
    if (spec.cable == kNoCable) continue;
    const bool listed = spec.cable >= 0 && static_cast<size_t>(spec.cable) < count;
    if (!listed || !cables_.try_emplace(spec.cable, OwnCable{link.get(), spec}).second) {
      throw std::invalid_argument(
          "links[" + std::to_string(i) + "].cable: " + std::to_string(spec.cable) +
          " is not another one of the " + std::to_string(count) + " cables");
    }
    rates_.add(spec, *link);
  }
  rates_.joinConnections();
}

void LocalCables::start() {
  for (auto& [number, cable] : cables_) rates_.setInterface(number, interfaceOf(cable.spec.fd));
  carriers_ = std::make_unique<CarrierWatch>(reactor_, [this](int index) { onCarrierLost(index); });
}

void LocalCables::stop() {
  carriers_.reset();
  for (auto& [number, cable] : cables_) Descriptor(std::exchange(cable.waiting_fd, -1));
}

LocalCables::OwnCable* LocalCables::find(int cable) {
  const auto found = cables_.find(cable);
  return found == cables_.end() ? nullptr : &found->second;
}

void LocalCables::signal() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

// ---- a cable is lost ---------------------------------------------------------------------------

void LocalCables::onLost(Link& link, Loss loss, const std::string& why) {
  OwnCable& cable = cables_.at(link.cable());
  const std::string name = textOf(link.name());
  link.finishReading();
  if (status_.failed()) return;
  if (cable.ledger.lost()) {
    logLine(LogLevel::kInfo, "a new connection of the link " + name + " is lost at once: " + why);
    for (OutFrame& frame : link.takeUnwritten()) routes_.dispatch(std::move(frame));
    reportLost(cable, loss);
  } else {
    cable.ledger.lose(link.receivedFrames());
    cable.kept = link.takeKept();
    cable.unreported = true;
    if (cable.waiting_fd >= 0 || (cable.moving && loss == Loss::kClosed)) {
      logLine(LogLevel::kDebug, "the link " + name + " moves to another connection");
    } else {
      logLine(LogLevel::kWarning, "lost the link " + name + ": " + why);
      reportLost(cable, loss);
    }
    for (OutFrame& frame : link.takeUnwritten()) routes_.dispatch(std::move(frame));
    reports_.react();
  }
  if (const int fd = std::exchange(cable.waiting_fd, -1); fd >= 0) {
    join(cable, fd, std::move(cable.waiting_key));
  }
  signal();
}

// Notifies other ranks of a loss, if they are not yet.
void LocalCables::reportLost(OwnCable& cable, Loss loss) {
  cable.moving = false;
  if (!std::exchange(cable.unreported, false)) return;
  reports_.reportLost(cable.spec.cable, cable.ledger.generation(), loss);
  sendLinkLost(cable);
  reports_.react();
}

void LocalCables::sendLinkLost(const OwnCable& cable) {
  OutFrame frame;
  frame.header = headerOf(FrameType::kLinkLost, cable.spec.cable, cable.ledger.counts());
  frame.header.source = static_cast<uint16_t>(config_.rank);
  frame.header.target = static_cast<uint16_t>(cable.spec.peerRank());
  frame.header.detour = 1;
  routes_.dispatch(std::move(frame));
}

void LocalCables::onLinkLost(const FrameHeader& header) {
  OwnCable* const cable = find(static_cast<int>(header.stream));
  if (cable == nullptr || cable->spec.peerRank() != header.source) return;
  const bool in_use = !cable->ledger.lost();
  const CableLedger::Reaction reaction = cable->ledger.onLinkLost(countsOf(header));
  if (reaction.arrived) settle(*cable, *reaction.arrived);
  if (reaction.drop) {
    cable->link->drop(Loss::kGivenUp, "the other end has lost it");
    // The handler of the loss comes first.
    if (in_use) reactor_.after(kLateTime, [this, header] { onLinkLost(header); });
  }
  if (reaction.answer) sendLinkLost(*cable);
}

// The other end has the first `received` frames of the connection.
void LocalCables::settle(OwnCable& cable, uint64_t received) {
  FrameQueue::Kept kept = std::exchange(cable.kept, {});
  if (received < kept.first || received - kept.first > kept.frames.size()) {
    return fail_("rank " + std::to_string(cable.spec.peerRank()) + " says that " +
                 std::to_string(received) + " frames have passed the link " +
                 textOf(cable.link->name()) + ", of which " + std::to_string(kept.first) +
                 " were acknowledged and " + std::to_string(kept.first + kept.frames.size()) +
                 " sent");
  }
  for (size_t i = received - kept.first; i < kept.frames.size(); ++i) {
    routes_.dispatch(std::move(kept.frames[i]));
  }
}

void LocalCables::onState(const Link& link, const FrameHeader& header) {
  if (!reports_.onState(link, header)) return;
  if (const OwnCable* cable = find(static_cast<int>(header.stream))) confirmUp(*cable);
  reports_.react();
}

// Where the other end has reported a loss that this end has not, it waits for the report that the
// cable is up again.
void LocalCables::confirmUp(const OwnCable& cable) {
  const int number = cable.spec.cable;
  if (cable.ledger.lost()) return;
  if (graph_.numberAt(number, cable.spec.peerRank()) <= graph_.numberAt(number, config_.rank)) {
    return;
  }
  reports_.reportUp(number, cable.ledger.generation());
}

// ---- a cable comes back ------------------------------------------------------------------------

std::vector<int> LocalCables::lost() const {
  std::vector<int> list;
  if (status_.failed() || status_.closing) return list;
  for (const auto& [number, cable] : cables_) {
    if (cable.ledger.lost() && cable.link->dead()) list.push_back(number);
  }
  return list;
}

std::vector<int> LocalCables::slow() const {
  std::vector<int> list;
  for (const auto& [number, cable] : cables_) {
    if (rates_.isSlow(number)) list.push_back(number);
  }
  return list;
}

bool LocalCables::beginMove(int cable) {
  OwnCable* const found = find(cable);
  if (found == nullptr || status_.failed() || status_.closing) return false;
  if (found->ledger.lost() || !found->link->usable()) return false;
  found->link->leaveNothing(true);
  found->moving = true;
  return true;
}

void LocalCables::endMove(int cable) {
  OwnCable* const found = find(cable);
  if (found == nullptr || !found->moving) return;
  found->moving = false;
  found->link->leaveNothing(false);
  if (!found->ledger.lost()) return;
  logLine(LogLevel::kWarning, "lost the link " + textOf(found->link->name()) +
                                  ": the connection that it was to move to has failed");
  reportLost(*found, Loss::kGivenUp);
  signal();
}

void LocalCables::limitRate(int cable, std::optional<uint64_t> bytes_per_s) {
  if (OwnCable* const found = find(cable)) found->link->limitRate(bytes_per_s);
}

void LocalCables::replace(int cable, int fd, std::string tls_key) {
  OwnCable* const found = find(cable);
  if (found != nullptr && found->spec.tls_key.empty() != tls_key.empty()) {
    Descriptor{fd};
    throw std::invalid_argument("tls_key: cable " + std::to_string(cable) + " was opened " +
                                (tls_key.empty() ? "with" : "without") + " one");
  }
  if (found == nullptr || status_.failed() || status_.closing) {
    Descriptor{fd};
    return;
  }
  join(*found, fd, std::move(tls_key));
}

void LocalCables::join(OwnCable& cable, int fd, std::string tls_key) {
  // Else it is lost soon, or its loss is known but not yet handled.
  if (!cable.link->dead() || !cable.ledger.lost()) {
    if (cable.waiting_fd >= 0) Descriptor{cable.waiting_fd};
    cable.waiting_fd = fd;
    cable.waiting_key = std::move(tls_key);
    cable.old_ticks = 0;
    // Of a move from here, the other end closes the old connection when it has the new one.
    if (!cable.moving) cable.link->drop(Loss::kGivenUp, "the other end has opened it anew");
    return;
  }
  LinkSpec spec = cable.spec;
  spec.fd = fd;
  spec.tls_key = std::move(tls_key);
  cable.joining_ticks = 0;
  OutFrame hello;
  hello.header = headerOf(FrameType::kLinkHello, spec.cable, cable.ledger.counts());
  rates_.setInterface(spec.cable, interfaceOf(fd));
  cable.link->reopen(spec);
  cable.link->sendControl(std::move(hello));
}

void LocalCables::onLinkHello(Link& link, const FrameHeader& header) {
  if (link.cable() == kNoCable || link.usable()) return;
  OwnCable& cable = cables_.at(link.cable());
  if (const auto arrived = cable.ledger.onHello(countsOf(header))) settle(cable, *arrived);
  if (status_.failed()) return;
  cable.quiet_ticks = cable.unanswered_ticks = cable.standing_ticks = 0;
  link.establish();
  const bool moved = std::exchange(cable.unreported, false);
  cable.moving = false;
  if (moved) {
    logLine(LogLevel::kInfo, "the link " + textOf(link.name()) + " has moved");
    confirmUp(cable);
    rates_.trust(link.cable());
  } else {
    logLine(LogLevel::kWarning, "the link " + textOf(link.name()) + " is back");
    reports_.reportUp(link.cable(), cable.ledger.generation());
  }
  rates_.restart(link.cable());
  // What was flooded while the two ends were apart.
  reports_.greet(link);
  for (const int rank : status_.left) {
    FrameHeader left;
    left.type = FrameType::kLeave;
    left.source = static_cast<uint16_t>(rank);
    link.sendHeader(left);
  }
  if (moved) {
    routes_.findWays();  // the graph is what it was
  } else {
    reports_.react();
  }
}

// ---- carriers, silence and standstill ----------------------------------------------------------

void LocalCables::onCarrierLost(int interface) {
  for (auto& [number, cable] : cables_) {
    if (rates_.interfaceAt(number) != interface) continue;
    cable.link->drop(Loss::kCarrier, "its interface is down");
  }
}

// What was seen before is of no use any more.
void LocalCables::letGo() {
  held_ = false;
  for (auto& [number, cable] : cables_) {
    cable.quiet_ticks = cable.unanswered_ticks = cable.standing_ticks = 0;
  }
  rates_.restartAll();
}

void LocalCables::tick() {
  if (held_) return;
  for (auto& [number, cable] : cables_) {
    tickCable(cable);
    if (status_.failed()) return;
  }
}

// Why what is sent does not arrive; nullptr if it does. A cable of which this is said twice within
// a short time is used again only as long after as a slow one: small packets, with which it is
// opened, may pass where large ones do not.
const char* LocalCables::standstillOf(OwnCable& cable) {
  const int number = cable.spec.cable;
  const Acknowledged acknowledged =
      rates_.isCrowded(number) ? Acknowledged::kAdvances : cable.link->acknowledged();
  cable.unanswered_ticks = acknowledged == Acknowledged::kNothing ? cable.unanswered_ticks + 1 : 0;
  cable.standing_ticks = acknowledged == Acknowledged::kAdvances ? 0 : cable.standing_ticks + 1;
  const auto limit =
      std::min<std::chrono::milliseconds>(kLongestStandstill, config_.silence_limit / 2);
  const bool stands = cable.standing_ticks * config_.tick >= limit;
  const int most = kMostUnansweredTicks * rates_.cablesAtInterfaceOf(number);
  const bool silent = cable.unanswered_ticks >= most && (stands || !rates_.isForwarded(number));
  if (!silent && !stands) return nullptr;
  const auto now = Reactor::Clock::now();
  const auto before = std::exchange(cable.last_standstill, std::optional(now));
  if (stands || (before && now - *before < kSoonAgain)) rates_.distrust(number, now);
  return silent ? kNoAnswer : kStandstill;
}

// What is sent must be acknowledged by the neighbour's system, however slowly the cable carries it;
// and its process, which sends something in every tick, must be heard of now and then.
void LocalCables::tickCable(OwnCable& cable) {
  Link& link = *cable.link;
  if (link.dead()) return;
  if (!link.usable()) {
    const int most = cable.unreported ? kMostMovingTicks : kMostJoiningTicks;
    if (++cable.joining_ticks > most) link.drop(Loss::kSilent, "no greeting");
    return;
  }
  if (cable.waiting_fd >= 0 && ++cable.old_ticks > kMostOldTicks) {
    return link.drop(Loss::kGivenUp, "a new connection is there");
  }
  if (const char* why = standstillOf(cable)) return link.drop(Loss::kSilent, why);
  cable.quiet_ticks = link.takeReceived() ? 0 : cable.quiet_ticks + 1;
  if (cable.quiet_ticks * config_.tick >= config_.silence_limit) {
    return fail_(stoppedText(cable.spec.peerRank(), config_.silence_limit));
  }
  link.lookForAcknowledgements();
  rates_.look(cable.spec.cable);
  if (!link.takeWrote()) link.sendHeader(heartbeat());
}

}  // namespace topoopt
