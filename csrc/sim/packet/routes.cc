// Routes: paths, several per flow, and changes at run time.

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "sim/packet/packet_network.h"

namespace topoopt::packet {

// Appends the links to the table of hops, with the return path if acknowledgements use it. Packets
// in flight keep the old entries.
void PacketNetwork::setRoute(int route, std::span<const int> links) {
  route_begin_[route] = static_cast<uint32_t>(hops_.size());
  Picoseconds latency = 0;
  for (int link : links) {
    hops_.push_back(static_cast<uint32_t>(link));
    latency += ports_[link].latency;
  }
  hops_.push_back(kNoLink);
  last_port_[route] = static_cast<uint32_t>(links.back());
  back_line_[route] = lines_.lineOf(latency);
  if (options_.acks != ReturnPath::kLinks || options_.transport == "constant") return;
  back_begin_[route] = static_cast<uint32_t>(hops_.size());
  for (auto it = links.rbegin(); it != links.rend(); ++it) {
    const ProgramLink& link = links_[*it];
    const auto back = links_between_.find({link.target, link.source});
    if (back == links_between_.end()) {
      throw std::invalid_argument("acks: links: link " + std::to_string(link.id) + " from node " +
                                  std::to_string(link.source) + " to " +
                                  std::to_string(link.target) +
                                  " has no link back; choose latency or instant");
    }
    // The i-th of parallel links is answered over the i-th reverse one.
    const std::vector<int>& there = links_between_[{link.source, link.target}];
    const size_t place = std::ranges::find(there, *it) - there.begin();
    hops_.push_back(static_cast<uint32_t>(back->second[place % back->second.size()]));
  }
  hops_.push_back(kNoLink);
}

void PacketNetwork::spread(int route, const std::vector<std::vector<int>>& paths) {
  failIfAdaptive("paths");
  Fan fan;
  for (const std::vector<int>& path : paths) {
    checkEnds(route, path, "paths");
    fan.routes.push_back(static_cast<int>(planned_routes_.size()));
    planned_routes_.push_back(path);
  }
  if (fan.routes.empty()) throw std::invalid_argument("paths: a flow needs at least one");
  fan_of_route_.resize(planned_routes_.size(), kNoLink);
  fan_of_route_[route] = static_cast<uint32_t>(fans_.size());
  fans_.push_back(std::move(fan));
}

void PacketNetwork::planReroute(double time_s, int route, std::vector<int> path) {
  failIfAdaptive("reroutes");
  if (!std::isfinite(time_s) || time_s < 0) {
    throw std::invalid_argument("reroutes: time_s " + std::to_string(time_s) +
                                " is not a finite number from 0 on");
  }
  checkEnds(route, path, "reroutes");
  if (reroutes_.size() > kTimerArgument) throw std::length_error("too many reroutes");
  reroutes_.push_back({toPicoseconds(time_s), route, std::move(path)});
}

void PacketNetwork::checkEnds(int route, std::span<const int> path, const char* field) const {
  const std::string where = field;
  if (path.empty()) throw std::invalid_argument(where + ": a path needs a link");
  const std::vector<int>& planned = planned_routes_[route];
  int at = links_[planned.front()].source;
  for (int link : path) {
    if (link < 0 || link >= static_cast<int>(links_.size())) {
      throw std::invalid_argument(where + ": link " + std::to_string(link) + " is not in 0.." +
                                  std::to_string(static_cast<int64_t>(links_.size()) - 1));
    }
    if (links_[link].source != at) {
      throw std::invalid_argument(where + ": link " + std::to_string(links_[link].id) +
                                  " leaves node " + std::to_string(links_[link].source) +
                                  ", but the path is at node " + std::to_string(at));
    }
    at = links_[link].target;
  }
  if (at != links_[planned.back()].target) {
    throw std::invalid_argument(where + ": a path ends at node " + std::to_string(at) +
                                ", not at " + std::to_string(links_[planned.back()].target));
  }
}

// Selects the next route of a sprayed flow; skips failed ones if possible.
void PacketNetwork::chooseRoute(Flow& flow) {
  if (flow.fan == kNoLink) return;
  Fan& fan = fans_[flow.fan];
  for (size_t tries = 0; tries < fan.routes.size(); ++tries) {
    flow.route = static_cast<uint32_t>(fan.routes[fan.next]);
    fan.next = fan.next + 1 == fan.routes.size() ? 0 : fan.next + 1;
    if (routeIsUp(flow)) return;
  }
}

bool PacketNetwork::routeIsUp(const Flow& flow) const {
  if (down_links_ == 0) return true;
  for (uint32_t at = route_begin_[flow.route]; hops_[at] != kNoLink; ++at) {
    if (!ports_[hops_[at]].up) return false;
  }
  return true;
}

// Applies to new packets; those in flight keep the old path.
void PacketNetwork::takeReroute(const Reroute& change) {
  const uint32_t before = hops_[route_begin_[change.route]];
  setRoute(change.route, change.path);
  unlist(before);
  restartAll();
}

void PacketNetwork::reroute(const std::vector<std::pair<int, const PairPath*>>& paths) {
  failIfAdaptive("paths");
  std::vector<int> links;
  for (const auto& [route, path] : paths) {
    links.clear();
    for (const LinkUse& use : path->uses) {
      if (use.load != 1) throw std::invalid_argument("paths: a packet takes one path");
      links.push_back(use.link);
    }
    checkEnds(route, links, "paths");
    queue_at_sender_ |= trims_ && std::any_of(links.begin() + 1, links.end(), [this](int link) {
                          return links_[link].source < hosts_;
                        });
    setRoute(route, links);
  }
  for (uint32_t number = 0; number < ports_.size(); ++number) unlist(number);
  restartAll();
}

// Removes all flows' turns at a port.
void PacketNetwork::unlist(uint32_t number) {
  RingBuffer<uint32_t>& turns = channelOf(number, 0).turns;
  for (uint32_t i = turns.size(); i > 0; --i) {
    const uint32_t turn = turns.pop();
    if (turn == kTransit) {
      turns.push(turn);
    } else {
      flows_[turn].listed = false;
      freeIfOver(turn);
    }
  }
}

void PacketNetwork::hold(bool held) {
  if (held == held_) return;
  failIfAdaptive("control");
  held_ = held;
  if (held) return;
  for (uint32_t slot = 0; slot < flows_.size(); ++slot) {
    if (flows_[slot].live && !flows_[slot].done) transport_->resume(slot);
  }
  for (uint32_t number = 0; number < ports_.size(); ++number) {
    if (!ports_[number].busy) serve(number, false);
  }
  restartAll();
}

std::vector<double> PacketNetwork::waitingBytes() const {
  std::vector<double> bytes(planned_routes_.size(), 0.0);
  for (const Pending& flow : pending_) bytes[flow.route] += flow.size_bytes;
  for (const Flow& flow : flows_) {
    if (!flow.live || flow.done) continue;
    // Packets in flight still need their circuit, so at least one packet is left.
    const uint32_t left = std::max<uint32_t>(1, flow.packets - flow.next_new);
    bytes[flow.route] += static_cast<double>(left) * options_.payload_bytes;
  }
  return bytes;
}

// After changes of links or routes, every ready flow lists itself again.
void PacketNetwork::restartAll() {
  for (uint32_t slot = 0; slot < flows_.size(); ++slot) {
    Flow& flow = flows_[slot];
    if (!flow.live || flow.listed) continue;
    if (!routeIsUp(flow)) chooseRoute(flow);
    wake(slot);
  }
  startScanning();
}

}  // namespace topoopt::packet
