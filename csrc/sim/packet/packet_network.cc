#include "sim/packet/packet_network.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>

#include "sim/packet/flow_keys.h"

namespace topoopt::packet {

namespace {

constexpr int kEventsPerTurn = 1 << 16;  // between progress checks
constexpr int kScansPerTimeout = 8;
constexpr double kMostPackets = 4e9;  // per flow; packets have 32-bit numbers

int64_t orUnlimited(int64_t bytes) { return bytes > 0 ? bytes : kUnlimited; }

// Returns whether hosts relay packets. NDP's windows then share those queues; alternating with many
// flows would trim nearly all of their payloads.
bool hostsRelay(const FlowProgram& program) {
  for (int route = 0; route < program.routeCount(); ++route) {
    for (int link : program.route(route).subspan(1)) {
      if (program.links()[link].source < program.hosts()) return true;
    }
  }
  return false;
}

}  // namespace

PacketNetwork::PacketNetwork(const FlowProgram& program, const PacketOptions& options,
                             std::shared_ptr<AdaptiveRouting> routing)
    : options_(options), links_(program.links()), routing_(std::move(routing)) {
  options_.validate();
  hosts_ = program.hosts();
  full_bytes_ = static_cast<uint32_t>(options_.payload_bytes + options_.header_bytes);
  trims_ = options_.transport == "ndp";
  hosts_relay_ = hostsRelay(program);
  marks_on_departure_ = options_.transport == "dctcp" && options_.dctcp.mark_on_departure;
  scan_interval_ =
      std::max<Picoseconds>(1, toPicoseconds(options_.retransmission_timeout_s) / kScansPerTimeout);
  for (int route = 0; route < program.routeCount(); ++route) {
    const std::span<const int> links = program.route(route);
    planned_routes_.emplace_back(links.begin(), links.end());
  }
  for (size_t i = 0; i < links_.size(); ++i) {
    links_between_[{links_[i].source, links_[i].target}].push_back(static_cast<int>(i));
  }
  fan_of_route_.assign(planned_routes_.size(), kNoLink);
  prepareRouting(program);
  keys_ = flowKeys(program, options_.seed);
  ids_.reserve(keys_.size());
  for (int task = 0; task < program.graph().size(); ++task) ids_.push_back(program.taskId(task));
  reset();
}

PacketNetwork::~PacketNetwork() = default;

void PacketNetwork::reset() {
  lines_.clear();
  departures_.clear();
  timers_.clear();
  flows_.clear();
  pending_.clear();
  free_slots_.clear();
  now_ = 0;
  events_ = packet_hops_ = dropped_ = data_inside_ = 0;
  down_links_ = 0;
  scanning_ = watching_ = held_ = false;
  queue_at_sender_ =
      trims_ ? hosts_relay_ : options_.transport == "dctcp" && options_.dctcp.queue_at_sender;
  random_ = options_.seed;
  prepareLines();
  addPorts();
  hops_.clear();
  const size_t routes = planned_routes_.size();
  route_begin_.assign(routes, 0);
  back_begin_.assign(routes, 0);
  last_port_.assign(routes, 0);
  back_line_.assign(routes, 0);
  for (size_t route = 0; route < routes; ++route) {
    setRoute(static_cast<int>(route), planned_routes_[route]);
  }
  for (Fan& fan : fans_) fan.next = 0;
  for (size_t i = 0; i < reroutes_.size(); ++i) {
    timers_.push(reroutes_[i].time, kReroute | static_cast<uint32_t>(i));
  }
  transport_ = makeTransport(*this, options_);
}

// Collects all delays in ascending order, so that ties do not depend on the order of routes.
void PacketNetwork::prepareLines() {
  std::set<Picoseconds> delays;
  const auto latency = [&](int link) { return std::llround(links_[link].latency_ns * 1000); };
  const auto add = [&](const std::vector<int>& route) {
    Picoseconds sum = 0;
    for (int link : route) sum += latency(link);
    delays.insert(sum);
  };
  for (size_t link = 0; link < links_.size(); ++link) {
    delays.insert(latency(static_cast<int>(link)));
  }
  for (const std::vector<int>& route : planned_routes_) add(route);
  for (const Reroute& change : reroutes_) add(change.path);
  for (Picoseconds delay : delays) lines_.lineOf(delay);
}

void PacketNetwork::addPorts() {
  ports_.clear();
  ports_.resize(links_.size());
  channels_.clear();
  channels_.resize(links_.size() * channel_count_);
  sending_flows_.clear();
  sending_flows_.resize(adaptive() ? hosts_ : 0);
  waiting_flows_.clear();
  waiting_flows_.resize(sending_flows_.size());
  next_senders_.clear();
  for (size_t i = 0; i < links_.size(); ++i) {
    const ProgramLink& link = links_[i];
    Port& port = ports_[i];
    port.setRate(link.bits_per_s, full_bytes_);
    port.latency = std::llround(link.latency_ns * 1000);
    port.line = lines_.lineOf(port.latency);
    const bool relay = link.source < hosts_;
    port.limit_bytes =
        orUnlimited(relay ? options_.relay_queue_bytes : options_.switch_queue_bytes);
    if (options_.transport == "dctcp") {
      if (!relay || options_.dctcp.mark_in_hosts) {
        port.mark_from_bytes = port.mark_all_from_bytes =
            static_cast<int64_t>(options_.dctcp.mark_above_packets) * full_bytes_;
      }
    } else if (options_.transport == "dcqcn") {
      port.mark_from_bytes = options_.dcqcn.mark_from_bytes;
      port.mark_all_from_bytes = options_.dcqcn.mark_all_from_bytes;
      port.mark_probability = options_.dcqcn.mark_probability;
    } else if (trims_) {
      port.limit_bytes = std::min(port.limit_bytes,
                                  static_cast<int64_t>(options_.ndp.queue_packets) * full_bytes_);
    }
    if (options_.lossless) {
      // Bytes that arrive after a pause was sent: a round trip at full rate and a packet in service
      // at either end.
      const double round_trip_bytes =
          2 * link.bits_per_s / 8 * toSeconds(port.latency) + 4.0 * full_bytes_;
      port.limit_bytes = kUnlimited;
      port.buffer_limit_bytes =
          options_.pause_above_bytes + static_cast<int64_t>(std::ceil(round_trip_bytes));
    }
  }
}

void PacketNetwork::start(int number, const Task& task, double now_s) {
  now_ = std::max(now_, toPicoseconds(now_s));
  const double size_bytes = std::ceil(task.amount);
  if (std::ceil(size_bytes / options_.payload_bytes) > kMostPackets) {
    throw std::invalid_argument("bytes " + std::to_string(task.amount) +
                                " is more packets than one flow may have (4e9)");
  }
  uint64_t place = 0;
  if (options_.start_order == StartOrder::kNumbered) {
    place = static_cast<uint64_t>(sourceOf(task.resource)) << 32 |
            static_cast<uint64_t>(targetOf(task.resource));
  } else if (options_.start_order == StartOrder::kGiven) {
    place = static_cast<uint64_t>(ids_[number]);
  }
  pending_.push_back({place, keys_[number], ids_[number], number, task.resource, size_bytes});
}

void PacketNetwork::beginPending() {
  if (pending_.empty()) return;
  std::ranges::sort(pending_, [](const Pending& a, const Pending& b) {
    return std::tie(a.place, a.key, a.id) < std::tie(b.place, b.key, b.id);
  });
  for (const Pending& flow : pending_) begin(flow.number, flow.route, flow.size_bytes);
  pending_.clear();
}

void PacketNetwork::begin(int number, int route, double size_bytes) {
  const double packets = std::ceil(size_bytes / options_.payload_bytes);
  uint32_t slot;
  if (free_slots_.empty()) {
    slot = static_cast<uint32_t>(flows_.size());
    if (slot > kTimerArgument) throw std::length_error("too many flows at once");
    flows_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  Flow& flow = flows_[slot];
  flow = Flow{};
  flow.number = number;
  flow.route = static_cast<uint32_t>(route);
  flow.target = static_cast<uint32_t>(targetOf(route));
  flow.packets = static_cast<uint32_t>(packets);
  flow.last_bytes =
      options_.full_last_packet
          ? full_bytes_
          : static_cast<uint32_t>(size_bytes - (packets - 1) * options_.payload_bytes) +
                static_cast<uint32_t>(options_.header_bytes);
  flow.fan = fan_of_route_[flow.route];
  flow.live = true;
  if (flow.fan != kNoLink && options_.spread == Spread::kEcmp) {
    fans_[flow.fan].next = static_cast<uint32_t>(chance() * fans_[flow.fan].routes.size());
  }
  chooseRoute(flow);
  if (options_.spread == Spread::kEcmp) flow.fan = kNoLink;
  transport_->begin(slot);
  startScanning();
}

double PacketNetwork::advance(double until_s, std::vector<int>& delivered) {
  const Picoseconds until = std::isinf(until_s) ? kNever : toPicoseconds(until_s);
  const size_t before = delivered.size();
  delivered_ = &delivered;
  beginPending();
  for (int budget = kEventsPerTurn; budget > 0; --budget) {
    const Picoseconds arrival = lines_.topTime();
    const Picoseconds departure = departures_.topTime();
    const Picoseconds timer = timers_.topTime();
    const Picoseconds next = std::min(arrival, std::min(departure, timer));
    if (delivered.size() != before && next != now_) break;
    if (next > until || next == kNever) {
      if (next == kNever) failIfDeadlocked();
      if (until != kNever) now_ = std::max(now_, until);
      return until_s;  // exact, without rounding to picoseconds
    }
    now_ = next;
    ++events_;
    if (arrival == next) {
      arrive(lines_.pop());
    } else if (departure == next) {
      depart(departures_.topSource());
    } else {
      runTimer();
    }
  }
  std::sort(delivered.begin() + static_cast<std::ptrdiff_t>(before), delivered.end());
  return toSeconds(now_);
}

void PacketNetwork::runTimer() {
  const uint32_t source = timers_.topSource();
  timers_.pop();
  const uint32_t argument = source & kTimerArgument;
  switch (source & ~kTimerArgument) {
    case kPacer:
      transport_->pace(argument);
      break;
    case kWake:
      flows_[argument].timed = false;
      wake(argument);
      unref(argument);
      break;
    case kScan:
      scan();
      break;
    case kReroute:
      takeReroute(reroutes_[argument]);
      break;
    case kDeadlock:
      watching_ = false;
      failIfDeadlocked();
      watch();
  }
}

void PacketNetwork::startScanning() {
  if (scanning_ || !transport_->hasTimeouts()) return;
  scanning_ = true;
  timers_.push(now_ + scan_interval_, kScan);
}

// Skips flows with a failed route, because no packet would arrive.
void PacketNetwork::scan() {
  bool any = held_;
  for (uint32_t slot = 0; slot < flows_.size(); ++slot) {
    if (held_ || !flows_[slot].live || flows_[slot].done || !routeIsUp(flows_[slot])) continue;
    any = true;
    transport_->checkTimeout(slot);
  }
  scanning_ = false;
  if (any) startScanning();
}

void PacketNetwork::wake(uint32_t slot) {
  Flow& flow = flows_[slot];
  if (adaptive()) {
    wakeAdaptive(slot);
    return;
  }
  if (held_ || flow.done || flow.listed || flow.timed) return;
  if (queue_at_sender_) {
    if (!routeIsUp(flow)) return;  // otherwise a window would be lost
    Picoseconds from = now_;
    while (transport_->ready(slot, from)) {
      const uint32_t number = firstPort(flow);
      Packet packet;
      fill(slot, packet);
      packet.link = kOwnHost;
      enqueue(number, packet);
    }
    return;
  }
  const uint32_t number = firstPort(flow);
  Port& port = ports_[number];
  const Picoseconds free_at = std::max(now_, port.free_at);
  Picoseconds from = free_at;
  if (!transport_->ready(slot, from)) return;
  if (from > free_at) {
    flow.timed = true;
    ++flow.refs;
    timers_.push(from, kWake | slot);
    return;
  }
  flow.listed = true;
  channelOf(number, 0).turns.push(slot);
  if (!port.busy) serve(number, false);
}

void PacketNetwork::complete(uint32_t slot) {
  flows_[slot].done = true;
  delivered_->push_back(flows_[slot].number);
}

void PacketNetwork::unref(uint32_t slot) {
  Flow& flow = flows_[slot];
  if (--flow.refs == 0) freeIfOver(slot);
}

void PacketNetwork::freeIfOver(uint32_t slot) {
  Flow& flow = flows_[slot];
  if (!flow.done || flow.listed || flow.refs > 0) return;
  flow.live = false;
  transport_->end(slot);
  free_slots_.push_back(slot);
}

void PacketNetwork::sendForward(uint32_t slot, PacketKind kind) {
  Flow& flow = flows_[slot];
  ++flow.refs;
  Packet packet{};
  packet.flow = slot;
  packet.hop = route_begin_[flow.route] + 1;
  packet.size_bytes = static_cast<uint32_t>(options_.header_bytes);
  packet.link = kNoLink;
  packet.kind = kind;
  enqueueControl(firstPort(flow), packet);
}

void PacketNetwork::sendBack(uint32_t slot, PacketKind kind, uint32_t seq, uint32_t value,
                             bool marked) {
  Flow& flow = flows_[slot];
  Packet packet{slot,    seq,  value, 0, static_cast<uint32_t>(options_.header_bytes),
                kNoLink, kind, marked};
  if (options_.acks == ReturnPath::kInstant) {
    transport_->answer(packet);
    return;
  }
  ++flow.refs;
  if (options_.acks == ReturnPath::kLatency) {
    lines_.push(back_line_[flow.route], now_, packet);
  } else {
    const uint32_t at = back_begin_[flow.route];
    packet.hop = at + 1;
    enqueueControl(hops_[at], packet);
  }
}

std::vector<double> PacketNetwork::linkBytes() const {
  std::vector<double> bytes;
  for (const Port& port : ports_) bytes.push_back(static_cast<double>(port.counts.payload_bytes));
  return bytes;
}

// SplitMix64.
double PacketNetwork::chance() {
  uint64_t x = random_ += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

}  // namespace topoopt::packet
