#include "transport/endpoint/cable_rates.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <tuple>
#include <utility>

#include "common/log.h"

namespace topoopt {
namespace {

constexpr double kBytesPerSecondOfGbps = 1e9 / 8;

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

void CableRates::add(const LinkSpec& spec, Link& link) {
  cables_.try_emplace(spec.cable, Watched{&link, spec});
}

// Links without ports have no name of their own.
void CableRates::joinConnections() {
  std::map<decltype(nameOf(LinkSpec{})), std::vector<Watched*>> links;
  for (auto& [number, cable] : cables_) {
    if (cable.spec.link.source_port >= 0) links[nameOf(cable.spec)].push_back(&cable);
  }
  for (auto& [name, connections] : links) {
    if (connections.size() < 2) continue;
    Joint& joint = *joint_.emplace_back(std::make_unique<Joint>());
    joint.connections = connections;
    joint.progress = JointProgress(connections.size());
    for (Watched* const each : connections) each->joint = &joint;
  }
}

int CableRates::cablesAtInterfaceOf(int cable) const {
  const int interface = interfaceAt(cable);
  if (interface == 0) return 1;
  return static_cast<int>(std::ranges::count_if(
      cables_, [=](const auto& entry) { return entry.second.interface == interface; }));
}

// The cables at the interface that send.
int CableRates::sendersAt(int interface) const {
  if (interface == 0) return 1;
  return static_cast<int>(std::ranges::count_if(cables_, [=](const auto& entry) {
    return entry.second.interface == interface && entry.second.spec.sends;
  }));
}

bool CableRates::isSlow(int cable) const {
  const Watched& watched = cables_.at(cable);
  return watched.rate.isSlow() || (watched.joint != nullptr && watched.joint->rate.isSlow());
}

bool CableRates::isCrowded(int cable) const {
  const Watched& watched = cables_.at(cable);
  return watched.joint != nullptr ? watched.joint->rate.isCrowded() : watched.rate.isCrowded();
}

void CableRates::distrust(int cable, Clock::time_point now) {
  report_(cable, cables_.at(cable).rate.distrust(now));
}

void CableRates::trust(int cable) {
  if (cables_.at(cable).rate.trust()) report_(cable, 1.0);
}

void CableRates::restartAll() {
  for (auto& [number, cable] : cables_) cable.rate.restart();
  for (const auto& joint : joint_) joint->rate.restart();
}

double CableRates::plannedRate(const Watched& cable) const {
  return graph_.cables()[static_cast<size_t>(cable.spec.cable)].rate * kBytesPerSecondOfGbps;
}

// The largest part of its planned rate that any link of this rank has carried. A link that was slow
// from the first large message on has no better rate of its own to compare with. If all ranks wait
// for it, the other links carry short messages only, for which a part above 1 proves nothing.
double CableRates::bestPart() const {
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

std::optional<SendProgressCounters> CableRates::progressOf(const Watched& cable) {
  std::optional<SendProgressCounters> progress = cable.link->sendProgress();
  if (progress) progress->interface = interfaces_.read(cable.interface);
  return progress;
}

void CableRates::look(int cable) {
  Watched& watched = cables_.at(cable);
  if (!watched.spec.sends) return;
  Joint* const joint = watched.joint;
  const int senders = sendersAt(watched.interface);
  const bool alone = joint == nullptr && senders <= 1 && !isForwarded(cable);
  const double usual = bestPart() * plannedRate(watched);
  const auto change =
      watched.rate.look(alone ? progressOf(watched) : std::nullopt, Clock::now(), usual);
  if (change) report(watched, *change);
  if (joint == nullptr || joint->connections.front() != &watched) return;
  if (senders <= static_cast<int>(joint->connections.size())) lookJointly(*joint);
}

void CableRates::lookJointly(Joint& joint) {
  std::vector<std::optional<SendProgressCounters>> counters;
  for (const Watched* const each : joint.connections) {
    counters.push_back(each->link->usable() ? each->link->sendProgress() : std::nullopt);
  }
  std::optional<SendProgressCounters> progress = joint.progress.add(counters);
  // All of them go over one interface, which is read once.
  if (progress) progress->interface = interfaces_.read(joint.connections.front()->interface);
  const auto connections = static_cast<double>(joint.connections.size());
  const double usual = bestPart() * plannedRate(*joint.connections.front()) * connections;
  const auto change = joint.rate.look(progress, Clock::now(), usual);
  if (!change) return;
  for (const Watched* const each : joint.connections) report(*each, *change);
}

void CableRates::report(const Watched& cable, const RateWatch::Change& change) {
  const bool slow = change.speed < 1;
  if (cable.joint == nullptr || cable.joint->connections.front() == &cable) {
    std::string text = "the link " + textOf(cable.link->name());
    text += slow ? " is slow: it carries " + shortOf(change.speed * change.usual * 8e-6) + " of " +
                       shortOf(change.usual * 8e-6) + " Mb/s"
                 : " is tried at its usual rate";
    if (change.lost_part > 0) {
      text += ", as " + shortOf(100 * change.lost_part) + " % of its packets are lost";
    }
    logLine(slow ? LogLevel::kWarning : LogLevel::kInfo, text);
  }
  report_(cable.spec.cable, change.speed);
}

}  // namespace topoopt
