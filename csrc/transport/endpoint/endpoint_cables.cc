// Cables that are lost, and new connections for them.
//
// Both ends of a lost cable exchange, over other cables, how many frames have arrived; each sends
// again what the other one does not have, and so nothing is lost and nothing comes twice
// (cable_ledger.h). An end counts only when it has read all that its transport has acknowledged,
// and acknowledges nothing more (Link::drop). Frames that were not yet written need not wait for
// that. A new connection begins with the same counts in both directions (kLinkHello), so cables may
// come back where no other way is left.
//
// A cable that moves to another connection is not lost for other ranks: its ends make the same
// exchange by themselves, within a few round trips. The end that dials says so before (beginMove)
// and keeps the old connection until the other end, which has the new one first, closes it.

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/errors.h"
#include "common/log.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {
namespace {

// In which a report reaches all ranks that it can reach.
constexpr std::chrono::milliseconds kReportTime{100};
// From the first report of a change until groups are notified of it.
constexpr std::chrono::milliseconds kSettlingTime{50};
constexpr uint32_t kSpeedUnits = 1'000'000;  // that are 1

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

}  // namespace

void Endpoint::startCables() {
  if (!graph_) return;
  for (size_t i = 0; i < links_.size(); ++i) {
    const auto& [spec, link] = links_[i];
    if (spec.cable == kNoCable) continue;
    const bool listed = spec.cable >= 0 && static_cast<size_t>(spec.cable) < config_.cables.size();
    if (!listed || !cables_.try_emplace(spec.cable, OwnCable{link.get(), spec}).second) {
      throw std::invalid_argument(
          "links[" + std::to_string(i) + "].cable: " + std::to_string(spec.cable) +
          " is not another one of the " + std::to_string(config_.cables.size()) + " cables");
    }
  }
  joinConnections();
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
  link.finishReading();
  if (!failure_.empty()) return;
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
  reportCable({cable.spec.cable, config_.rank, cable.ledger.generation(), false, loss}, nullptr);
  sendLinkLost(cable);
  graphChanged();
}

void Endpoint::sendLinkLost(const OwnCable& cable) {
  OutFrame frame;
  frame.header = headerOf(FrameType::kLinkLost, cable.spec.cable, cable.ledger.counts());
  frame.header.source = static_cast<uint16_t>(config_.rank);
  frame.header.target = static_cast<uint16_t>(cable.spec.peerRank());
  frame.header.detour = 1;
  routes_.dispatch(std::move(frame));
}

void Endpoint::onLinkLost(const FrameHeader& header) {
  const auto found = cables_.find(static_cast<int>(header.stream));
  if (found == cables_.end() || found->second.spec.peerRank() != header.source) return;
  OwnCable& cable = found->second;
  const bool in_use = !cable.ledger.lost();
  const CableLedger::Reaction reaction = cable.ledger.onLinkLost(countsOf(header));
  if (reaction.arrived) settle(cable, *reaction.arrived);
  if (reaction.drop) {
    cable.link->drop(Loss::kGivenUp, "the other end has lost it");
    // The handler of the loss comes first.
    if (in_use) reactor_.after(kLateTime, [this, header] { onLinkLost(header); });
  }
  if (reaction.answer) sendLinkLost(cable);
}

// The other end has the first `received` frames of the connection.
void Endpoint::settle(OwnCable& cable, uint64_t received) {
  FrameQueue::Kept kept = std::exchange(cable.kept, {});
  if (received < kept.first || received - kept.first > kept.frames.size()) {
    return failAll("rank " + std::to_string(cable.spec.peerRank()) + " says that " +
                       std::to_string(received) + " frames have passed the link " +
                       textOf(cable.link->name()) + ", of which " + std::to_string(kept.first) +
                       " were acknowledged and " + std::to_string(kept.first + kept.frames.size()) +
                       " sent",
                   true);
  }
  for (size_t i = received - kept.first; i < kept.frames.size(); ++i) {
    routes_.dispatch(std::move(kept.frames[i]));
  }
}

// ---- what all ranks report ---------------------------------------------------------------------

// Passes on what is new.
void Endpoint::reportCable(const CableReport& report, const Link* except) {
  if (graph_->take(report)) routes_.flood(headerOf(report), "", except);
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
  if (cable.ledger.lost()) return;
  if (graph_->numberAt(number, cable.spec.peerRank()) <= graph_->numberAt(number, config_.rank)) {
    return;
  }
  reportCable({number, config_.rank, cable.ledger.generation(), true, Loss::kClosed}, nullptr);
}

void Endpoint::graphChanged() {
  routes_.findWays();
  announceChange();
  judgeReach();
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
  routes_.flood(headerOf(report), "", except);
  graphChanged();
}

void Endpoint::onCableSpeed(Link& link, const FrameHeader& header) {
  if (header.stream >= graph_->cables().size() || header.offset > uint64_t{kSpeedUnits}) return;
  reportSpeed({static_cast<int>(header.stream), header.source, header.message,
               static_cast<double>(header.offset) / kSpeedUnits},
              &link);
}

// Ranks whose connections were all closed by their hosts are gone, as soon as reports that are on
// their way cannot say otherwise; others may come back until the limit. Where no lost cable leads
// from the ranks on this side to the others, as in a ring that sends one way, it is ranks nearer to
// the gap that judge.
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
  const auto limit = *cut_since_ + (cut.isDeath() ? kReportTime : config_.silence_limit);
  if (now >= limit) return failUnreachable(cut);
  cut_timer_ = reactor_.at(limit, [this] {
    cut_timer_.reset();
    judgeReach();
  });
}

void Endpoint::failUnreachable(const CableGraph::Cut& cut) {
  if (cut.isDeath()) {
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
      if (cable.ledger.lost() && cable.link->dead()) list.push_back(number);
    }
  });
  return list;
}

std::vector<int> Endpoint::slowCables() {
  std::vector<int> list;
  reactor_.run([&] {
    for (const auto& [number, cable] : cables_) {
      const JointWatch* const joint = jointOf(cable);
      if (cable.rate.isSlow() || (joint != nullptr && joint->rate.isSlow())) {
        list.push_back(number);
      }
    }
  });
  return list;
}

bool Endpoint::beginMove(int cable) {
  bool begun = false;
  reactor_.run([&] {
    const auto found = cables_.find(cable);
    if (found == cables_.end() || !failure_.empty() || (leaving_ && leaving_->closing)) return;
    if (found->second.ledger.lost() || !found->second.link->usable()) return;
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
    if (found->second.ledger.lost()) {
      logLine(LogLevel::kWarning, "lost the link " + textOf(found->second.link->name()) +
                                      ": the connection that it was to move to has failed");
      reportLost(found->second, Loss::kGivenUp);
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
  hello.header = headerOf(FrameType::kLinkHello, number, cable.ledger.counts());
  cable.interface = interfaceOf(fd);
  cable.link->reopen(spec);
  cable.link->sendControl(std::move(hello));
}

void Endpoint::onLinkHello(Link& link, const FrameHeader& header) {
  if (link.cable() == kNoCable || link.usable()) return;
  OwnCable& cable = cables_.at(link.cable());
  if (const auto arrived = cable.ledger.onHello(countsOf(header))) settle(cable, *arrived);
  if (!failure_.empty()) return;
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
    reportCable({link.cable(), config_.rank, cable.ledger.generation(), true, Loss::kClosed},
                nullptr);
  }
  cable.rate.restart();
  // What was flooded while the two ends were apart.
  for (const CableReport& report : graph_->reports()) link.sendHeader(headerOf(report));
  for (const CableSpeed& report : graph_->speeds()) link.sendHeader(headerOf(report));
  for (const int rank : left_) {
    FrameHeader header;
    header.type = FrameType::kLeave;
    header.source = static_cast<uint16_t>(rank);
    link.sendHeader(header);
  }
  if (moved) {
    routes_.findWays();  // the graph is what it was
  } else {
    graphChanged();
  }
}

}  // namespace topoopt
