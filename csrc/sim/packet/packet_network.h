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

// Every packet waits in each link's output queue, is sent at the link's rate, propagates for its
// latency, and is complete at the next node before it continues.
//
// Ties of events go by source: delay lines (arrivals), ports (departures), timers. Within a source
// they go by the delay, or the number of the port or timer. Simultaneous flows start in the order
// of their keys (flow_keys.h). So results depend only on the input and the seed, not on the order
// of flows.
class PacketNetwork final : public ReconfigurableNetwork {
 public:
  // Copies links, routes and keys of `program`. With an adaptive choice of paths, `routing` has the
  // allowed links; nullptr: all shortest paths on one channel. Throws std::invalid_argument for
  // invalid options, for acks over links without a return path, and for a routing of another
  // network or without a path.
  PacketNetwork(const FlowProgram& program, const PacketOptions& options,
                std::shared_ptr<AdaptiveRouting> routing = nullptr);
  ~PacketNetwork() override;

  // From the next reset() on, flows on `route` use all of `paths` as PacketOptions::spread says, or
  // `path` for data sent from `time_s` on. Paths must have the route's ends. Both throw
  // std::invalid_argument.
  void spread(int route, const std::vector<std::vector<int>>& paths);
  void planReroute(double time_s, int route, std::vector<int> path);

  void hold(bool held) override;
  bool drained() const override { return data_inside_ == 0; }
  std::vector<double> waitingBytes() const override;
  // The links of a path must be in order, each with load 1.
  void reroute(const std::vector<std::pair<int, const PairPath*>>& paths) override;
  int sourceOf(int route) const { return links_[planned_routes_[route].front()].source; }
  int targetOf(int route) const { return links_[planned_routes_[route].back()].target; }

  void reset() override;
  void start(int flow, const Task& task, double now_s) override;
  // Throws std::invalid_argument naming the paused links of a deadlock.
  double advance(double until_s, std::vector<int>& delivered) override;
  void changeLink(int link, double bits_per_s, double now_s) override;
  std::vector<double> linkBytes() const override;
  int64_t events() const override { return events_; }
  int64_t packetHops() const override { return packet_hops_; }

  const LinkCounts& counts(int link) const { return ports_[link].counts; }
  int64_t dropped() const { return dropped_; }
  // The peak number of concurrent flows.
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
  // Sends a control packet along the route, or back from receiver to sender.
  void sendForward(uint32_t slot, PacketKind kind);
  void sendBack(uint32_t slot, PacketKind kind, uint32_t seq, uint32_t value, bool marked);
  void unref(uint32_t slot);
  // All of the flow is delivered.
  void complete(uint32_t slot);
  // Calls pace(port) at `time`; at most one pending call per port.
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
  // Adaptive: the next link of a packet, or kNoLink at its target.
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
  // PFC: adds or removes the packet in the buffer at the end of its last link.
  bool buffer(const Packet& packet);
  void unbuffer(const Packet& packet);
  void release(Port& port, const Packet& packet);
  void signalPause(uint32_t number, uint32_t channel, PacketKind kind);
  void takePause(uint32_t number, uint32_t channel, bool paused);
  // A cycle of channels that wait for each other; empty: no deadlock.
  std::vector<uint32_t> findDeadlock() const;
  void failIfDeadlocked() const;
  void watch();
  double chance();

  PacketOptions options_;
  std::vector<ProgramLink> links_;
  std::vector<std::vector<int>> planned_routes_;                   // restored by reset()
  std::map<std::pair<int, int>, std::vector<int>> links_between_;  // per pair of nodes
  std::vector<Port> ports_;
  uint32_t channel_count_ = 1;                // of each port
  std::vector<Channel> channels_;             // of all ports
  std::shared_ptr<AdaptiveRouting> routing_;  // nullptr: planned routes
  // Adaptive: per host, active and waiting flows; and flows that became ready during the current
  // choice.
  std::vector<RingBuffer<uint32_t>> sending_flows_, waiting_flows_;
  std::vector<uint32_t> next_senders_;
  std::vector<uint32_t> hops_;  // routes, each terminated by kNoLink
  std::vector<uint32_t> route_begin_, back_begin_, last_port_, back_line_;
  struct Fan {
    std::vector<int> routes;
    uint32_t next = 0;
  };
  std::vector<Reroute> reroutes_;
  struct Pending {  // started, but waiting for others of the same instant
    uint64_t place, key;
    int64_t id;
    int number, route;
    double size_bytes;
  };
  std::vector<Pending> pending_;
  std::vector<uint64_t> keys_;  // per task of the program
  std::vector<int64_t> ids_;    // tie-breakers of equal keys
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
  bool hosts_relay_ = false;  // on the program's routes
  bool queue_at_sender_ = false;
  bool marks_on_departure_ = false;
  int hosts_ = 0;
  uint32_t down_links_ = 0;
  uint32_t full_bytes_ = 0;
  uint64_t random_ = 0;
  // data_inside_: data packets created but neither delivered nor lost.
  int64_t events_ = 0, packet_hops_ = 0, dropped_ = 0, data_inside_ = 0;
};

}  // namespace topoopt::packet
