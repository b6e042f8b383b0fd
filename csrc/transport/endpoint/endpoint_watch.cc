// What cables and neighbours are watched for: carriers that are lost, silence, and low rates.
//
// The connections of a link that has several share what it carries, so their rates are judged
// together: one alone is slow whenever the others are fast.

#include <algorithm>
#include <cstdio>
#include <tuple>
#include <utility>

#include "common/log.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {
namespace {

constexpr int kMostUnansweredTicks = 3;
// A system waits ever longer before it sends again what was lost; a new connection begins at once.
constexpr std::chrono::seconds kLongestStandstill{2};
constexpr std::chrono::seconds kSoonAgain{10};
constexpr int kMostQuietLooks = 8;  // in the silence limit
constexpr int kMostJoiningTicks = 25;
// The same where other ranks are not notified meanwhile.
constexpr int kMostMovingTicks = 5;
// For the other end to go on over a new connection before the old one is given up here.
constexpr int kMostOldTicks = 2;
constexpr double kBytesPerSecondOfGbps = 1e9 / 8;

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

std::string shortOf(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", number);
  return text;
}

auto nameOf(const LinkSpec& spec) {
  const plan::LinkPorts& link = spec.link;
  return std::tuple(link.source, link.source_port, link.target, link.target_port, spec.sends);
}

}  // namespace

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
  for (const auto& joint : joint_) joint->rate.restart();
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
  remindReceivers();
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

// Acknowledgements wait, and what is sent does, while hosts send what they forward.
bool Endpoint::isCrowded(const OwnCable& cable) const {
  const JointWatch* const joint = jointOf(cable);
  return joint != nullptr ? joint->rate.isCrowded() : cable.rate.isCrowded();
}

// Why what is sent does not arrive; nullptr if it does. A cable of which this is said twice within
// a short time is used again only as long after as a slow one: small packets, with which it is
// opened, may pass where large ones do not.
const char* Endpoint::standstillOf(OwnCable& cable) {
  const Acknowledged acknowledged =
      isCrowded(cable) ? Acknowledged::kAdvances : cable.link->acknowledged();
  cable.unanswered_ticks = acknowledged == Acknowledged::kNothing ? cable.unanswered_ticks + 1 : 0;
  cable.standing_ticks = acknowledged == Acknowledged::kAdvances ? 0 : cable.standing_ticks + 1;
  const auto limit =
      std::min<std::chrono::milliseconds>(kLongestStandstill, config_.silence_limit / 2);
  const bool stands = cable.standing_ticks * config_.cable_tick >= limit;
  const bool silent = cable.unanswered_ticks >= kMostUnansweredTicks * cablesAt(cable.interface) &&
                      (stands || !isForwarded(cable));
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
    return link.drop(Loss::kGivenUp, "a new connection is there");
  }
  if (const char* why = standstillOf(cable)) return link.drop(Loss::kSilent, why);
  cable.quiet_ticks = link.takeReceived() ? 0 : cable.quiet_ticks + 1;
  if (cable.quiet_ticks * config_.cable_tick >= config_.silence_limit) {
    return failAll(stoppedText(cable.spec.peerRank(), config_.silence_limit), true);
  }
  link.lookForAcknowledgements();
  watchRate(cable);
  if (!link.takeWrote()) link.sendHeader(heartbeat());
}

// A neighbour whose link is no cable cannot be reached another way: it is silent for whatever
// reason, and fails all.
void Endpoint::watchNeighbours() {
  for (size_t i = 0; i < links_.size(); ++i) {
    const LinkSpec& spec = config_.links[i];
    if (spec.cable == kNoCable) neighbours_.push_back({links_[i].get(), spec.peerRank()});
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
    if (!of.link->takeWrote()) of.link->sendHeader(heartbeat());
  }
  reactor_.after(config_.silence_limit / kMostQuietLooks, [this] { lookAtNeighbours(); });
}

// ---- rates -------------------------------------------------------------------------------------

// Finds the links that have several connections. Those without ports have no name of their own.
void Endpoint::joinConnections() {
  std::map<decltype(nameOf(LinkSpec{})), std::vector<OwnCable*>> links;
  for (auto& [number, cable] : cables_) {
    if (cable.spec.link.source_port >= 0) links[nameOf(cable.spec)].push_back(&cable);
  }
  for (auto& [name, connections] : links) {
    if (connections.size() < 2) continue;
    auto& joint = joint_.emplace_back(std::make_unique<JointWatch>());
    joint->connections = connections;
    joint->progress = JointProgress(connections.size());
  }
}

Endpoint::JointWatch* Endpoint::jointOf(const OwnCable& cable) const {
  const auto found = std::ranges::find_if(joint_, [&](const auto& joint) {
    return std::ranges::find(joint->connections, &cable) != joint->connections.end();
  });
  return found == joint_.end() ? nullptr : found->get();
}

// It goes over cables of others, by hosts that forward: packets wait wherever those are full.
bool Endpoint::isForwarded(const OwnCable& cable) const { return plannedRate(cable) <= 0; }

double Endpoint::plannedRate(const OwnCable& cable) const {
  return graph_->cables()[static_cast<size_t>(cable.spec.cable)].rate * kBytesPerSecondOfGbps;
}

// What part of its planned rate the best link of this rank has carried. One that was slow from the
// first large message on has no better rate of its own. Where all wait for that one, the others
// have but short messages, for which a part above 1 is no evidence.
double Endpoint::bestPart() const {
  double part = 0;
  const auto consider = [&part](const RateWatch& rate, double planned) {
    if (planned <= 0) return;
    part = std::max({part, rate.bestBytesPerSecond() / planned,
                     std::min(1.0, rate.bestBurstBytesPerSecond() / planned)});
  };
  for (const auto& [number, cable] : cables_) consider(cable.rate, plannedRate(cable));
  for (const auto& joint : joint_) {
    const auto connections = static_cast<double>(joint->connections.size());
    consider(joint->rate, plannedRate(*joint->connections.front()) * connections);
  }
  return part;
}

std::optional<SendProgressCounters> Endpoint::progressOf(const OwnCable& cable) {
  std::optional<SendProgressCounters> progress = cable.link->sendProgress();
  if (progress) progress->interface = interfaces_.read(cable.interface);
  return progress;
}

// A slow cable is reported to all ranks, whose groups change their rings.
void Endpoint::watchRate(OwnCable& cable) {
  if (!cable.spec.sends) return;
  JointWatch* const joint = jointOf(cable);
  const int senders = sendersAt(cable.interface);
  // What others carry decides what a cable carries that shares its interface, or is forwarded. By
  // itself such a one is only ever distrusted, and tried anew.
  const bool alone = joint == nullptr && senders <= 1 && !isForwarded(cable);
  const double usual = bestPart() * plannedRate(cable);
  const auto change =
      cable.rate.look(alone ? progressOf(cable) : std::nullopt, Reactor::Clock::now(), usual);
  if (change) reportRate(cable, *change);
  if (joint == nullptr || joint->connections.front() != &cable) return;
  if (senders <= static_cast<int>(joint->connections.size())) watchJointly(*joint);
}

void Endpoint::watchJointly(JointWatch& joint) {
  std::vector<std::optional<SendProgressCounters>> counters;
  for (const OwnCable* const each : joint.connections) {
    counters.push_back(each->link->usable() ? each->link->sendProgress() : std::nullopt);
  }
  std::optional<SendProgressCounters> progress = joint.progress.add(counters);
  // All of them go over one interface, which is read once.
  if (progress) progress->interface = interfaces_.read(joint.connections.front()->interface);
  const auto connections = static_cast<double>(joint.connections.size());
  const double usual = bestPart() * plannedRate(*joint.connections.front()) * connections;
  const auto change = joint.rate.look(progress, Reactor::Clock::now(), usual);
  if (!change) return;
  for (OwnCable* const each : joint.connections) reportRate(*each, *change);
}

void Endpoint::reportRate(OwnCable& cable, const RateWatch::Change& change) {
  const bool slow = change.speed < 1;
  const JointWatch* const joint = jointOf(cable);
  if (joint == nullptr || joint->connections.front() == &cable) {
    std::string text = "the link " + textOf(cable.link->name());
    text += slow ? " is slow: it carries " + shortOf(change.speed * change.usual * 8e-6) + " of " +
                       shortOf(change.usual * 8e-6) + " Mb/s"
                 : " is tried at its usual rate";
    if (change.lost_part > 0) {
      text += ", as " + shortOf(100 * change.lost_part) + " % of its packets are lost";
    }
    logLine(slow ? LogLevel::kWarning : LogLevel::kInfo, text);
  }
  reportSpeed({cable.spec.cable, config_.rank, ++cable.speed_reports, change.speed}, nullptr);
  signalCables();
}

}  // namespace topoopt
