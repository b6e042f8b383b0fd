// The network at packet level: queues, links and the flows that cross them.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sim/core/flow_program.h"
#include "sim/core/network.h"
#include "sim/packet/adaptive_routing.h"
#include "sim/packet/delay_lines.h"
#include "sim/packet/event_heap.h"
#include "sim/packet/options.h"
#include "sim/packet/packet.h"
#include "sim/packet/port.h"
#include "sim/packet/transport.h"

namespace topoopt::packet {

// Every packet crosses every link of its route: it waits in the output queue, is sent at the rate
// of the link, flies for the latency, and is whole at the next node before it goes on there.
//
// There are three sources of events, and ties go in this order: delay lines (arrivals), ports (a
// packet has left), timers. All that has equal times goes by the delay of the line, the number of
// the port or timer; flows that start in the same instant begin in the order of their keys
// (flow_keys.h). So a run depends on nothing but its input and its seed, and not on the order in
// which flows are given.
class PacketNetwork final : public ReconfigurableNetwork {
 public:
  // Takes links, routes and keys of `program`, which may be gone afterwards. With an adaptive
  // choice of paths, `routing` says which links packets may take; without one, those of all
  // shortest paths, on one channel. Throws std::invalid_argument for options that are wrong, for
  // acks over links where a route has no way back, and for a routing of another network or without
  // a path.
  PacketNetwork(const FlowProgram& program, const PacketOptions& options,
                std::shared_ptr<AdaptiveRouting> routing = nullptr);
  ~PacketNetwork() override;

  // Flows on `route` of the program use all of `paths` (links) instead, as PacketOptions::spread
  // says; or, for what they send from `time_s` on, `path`. Paths begin and end where the route
  // does. From the next reset() on; both throw std::invalid_argument.
  void spread(int route, const std::vector<std::vector<int>>& paths);
  void planReroute(double time_s, int route, std::vector<int> path);

  void hold(bool held) override;
  bool drained() const override { return data_inside_ == 0; }
  std::vector<double> waitingBytes() const override;
  // The links of a path stand in the order in which they are crossed, each with load 1.
  void reroute(const std::vector<std::pair<int, const PairPath*>>& paths) override;
  int sourceOf(int route) const { return links_[planned_routes_[route].front()].source; }
  int targetOf(int route) const { return links_[planned_routes_[route].back()].target; }

  void reset() override;
  void start(int flow, const Task& task, double now_s) override;
  // Throws std::invalid_argument for a deadlock of paused links, and names them.
  double advance(double until_s, std::vector<int>& delivered) override;
  void changeLink(int link, double bits_per_s, double now_s) override;
  std::vector<double> linkBytes() const override;
  int64_t events() const override { return events_; }
  int64_t packetHops() const override { return packet_hops_; }

  const LinkCounts& counts(int link) const { return ports_[link].counts; }
  int64_t dropped() const { return dropped_; }
  // The most flows that were under way at once.
  size_t slots() const { return flows_.size(); }

  // For transports:
  Picoseconds now() const { return now_; }
  Flow& flow(uint32_t slot) { return flows_[slot]; }
  uint32_t firstPort(const Flow& flow) const { return hops_[route_begin_[flow.route]]; }
  uint32_t lastPort(const Flow& flow) const { return last_port_[flow.route]; }
  const Port& port(uint32_t number) const { return ports_[number]; }
  bool routeIsUp(const Flow& flow) const;
  // The flow may have become ready.
  void wake(uint32_t slot);
  // Sends a control packet forward along the route, or back from the receiver to the sender.
  void sendForward(uint32_t slot, PacketKind kind);
  void sendBack(uint32_t slot, PacketKind kind, uint32_t seq, uint32_t value, bool marked);
  void unref(uint32_t slot);
  // All of the flow is delivered.
  void complete(uint32_t slot);
  // pace(port) is called at `time`; at most one such call may be outstanding per port.
  void schedulePacer(uint32_t port, Picoseconds time) { timers_.push(time, kPacer | port); }

 private:
  static constexpr uint32_t kPacer = 0, kWake = 1u << 29, kScan = 2u << 29, kDeadlock = 3u << 29,
                            kReroute = 4u << 29;
  static constexpr uint32_t kTimerArgument = (1u << 29) - 1;

  void prepareLines();
  void addPorts();
  void setRoute(int route, std::span<const int> links);
  void checkEnds(int route, std::span<const int> path, const char* field) const;
  void arrive(Packet packet);
  void arriveAtEnd(const Packet& packet);
  void depart(uint32_t number);
  void runTimer();
  Channel& channelOf(uint32_t number, uint32_t channel) {
    return channels_[number * channel_count_ + channel];
  }
  const Channel& channelOf(uint32_t number, uint32_t channel) const {
    return channels_[number * channel_count_ + channel];
  }
  bool dataWaits(uint32_t number) const;
  bool choose(uint32_t number, uint32_t& again);
  bool chooseFrom(uint32_t number, Channel& channel, uint32_t& again);
  void fill(uint32_t slot, Packet& packet);
  bool chooseHeld(Port& port, Channel& channel);
  bool takeFrom(uint32_t slot, uint32_t number);
  void prepareRouting(const FlowProgram& program);
  bool adaptive() const { return routing_ != nullptr; }
  void failIfAdaptive(const char* field) const;
  // Adaptive: the link over which a packet goes on, or kNoLink at its target.
  uint32_t steer(Packet& packet);
  void chooseDetour(Packet& packet);
  uint32_t shortest(std::span<const uint32_t> links);
  int64_t waitingAt(uint32_t link) const;
  void wakeAdaptive(uint32_t slot);
  void offer(uint32_t slot);
  void offerNext();
  bool takeOwn(uint32_t number);
  void serve(uint32_t number, bool is_top);
  void enqueue(uint32_t number, const Packet& packet);
  void enqueueControl(uint32_t number, const Packet& packet);
  void mark(Port& port, Packet& packet);
  void trim(uint32_t number, Packet packet);
  void drop(const Packet& packet);

  void beginPending();
  void begin(int number, int route, double size_bytes);
  void freeIfOver(uint32_t slot);
  void chooseRoute(Flow& flow);
  struct Reroute {
    Picoseconds time;
    int route;
    std::vector<int> path;
  };
  void takeReroute(const Reroute& change);
  void unlist(uint32_t number);
  void restartAll();
  void startScanning();
  void scan();
  // PFC: the packet takes or leaves the buffer at the end of the link over which it came.
  bool buffer(const Packet& packet);
  void unbuffer(const Packet& packet);
  void release(Port& port, const Packet& packet);
  void signalPause(uint32_t number, uint32_t channel, PacketKind kind);
  void takePause(uint32_t number, uint32_t channel, bool paused);
  // Channels that wait for each other for ever, in a cycle; empty if there are none.
  std::vector<uint32_t> findDeadlock() const;
  void failIfDeadlocked() const;
  void watch();
  double chance();

  PacketOptions options_;
  std::vector<ProgramLink> links_;
  std::vector<std::vector<int>> planned_routes_;                   // as reset() restores them
  std::map<std::pair<int, int>, std::vector<int>> links_between_;  // per pair of nodes
  std::vector<Port> ports_;
  uint32_t channel_count_ = 1;                // of each port
  std::vector<Channel> channels_;             // of all ports
  std::shared_ptr<AdaptiveRouting> routing_;  // or null: packets take planned routes
  // Adaptive: per host, flows that send in turn, and those that wait until they may; and flows that
  // may send since the choice under way began.
  std::vector<RingBuffer<uint32_t>> sending_flows_, waiting_flows_;
  std::vector<uint32_t> next_senders_;
  std::vector<uint32_t> hops_;  // routes one after the other, each ended by kNoLink
  std::vector<uint32_t> route_begin_, back_begin_, last_port_, back_line_;
  struct Fan {
    std::vector<int> routes;
    uint32_t next = 0;
  };
  std::vector<Reroute> reroutes_;
  struct Pending {  // started, but not begun: others may start in the same instant
    uint64_t place, key;
    int64_t id;
    int number, route;
    double size_bytes;
  };
  std::vector<Pending> pending_;
  std::vector<uint64_t> keys_;  // per task of the program
  std::vector<int64_t> ids_;    // decide between equal keys
  std::vector<Fan> fans_;
  std::vector<uint32_t> fan_of_route_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> free_slots_;
  std::unique_ptr<Transport> transport_;
  DelayLines lines_;
  EventHeap departures_, timers_;
  std::vector<int>* delivered_ = nullptr;
  Picoseconds now_ = 0;
  Picoseconds scan_interval_ = 0;
  bool scanning_ = false, watching_ = false, held_ = false;
  bool trims_ = false;
  bool hosts_relay_ = false;  // on the routes of the program
  bool queue_at_sender_ = false;
  bool marks_on_departure_ = false;
  int hosts_ = 0;
  uint32_t down_links_ = 0;
  uint32_t full_bytes_ = 0;
  uint64_t random_ = 0;
  // Packets of data inside have been made and neither arrived nor got lost.
  int64_t events_ = 0, packet_hops_ = 0, dropped_ = 0, data_inside_ = 0;
};

}  // namespace topoopt::packet
