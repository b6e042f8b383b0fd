// The interface of a simulated network, implemented by both levels and driven by a TaskRunner.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/path_table.h"
#include "sim/core/task_graph.h"

namespace topoopt {

// Relative time difference of simultaneous events.
constexpr double kSimultaneous = 1e-12;

// A network with its own clock, which starts at 0 and only advances.
class Network {
 public:
  virtual ~Network() = default;

  // Removes all flows and link changes; returns to time 0.
  virtual void reset() = 0;

  // Starts flow `flow` (any inactive id) at `now_s`, which must not precede the last result of
  // advance(). `task` has its route and bytes.
  virtual void start(int flow, const Task& task, double now_s) = 0;

  // Advances to `until_s` (may be infinite), or to the first earlier delivery; appends delivered
  // flows to `delivered` in ascending order. Returns the reached time, infinity if `until_s` is
  // infinite and no flow will end. May return earlier without deliveries, so that the caller can
  // show progress.
  virtual double advance(double until_s, std::vector<int>& delivered) = 0;

  // Sets the rate of `link` from `now_s` on; 0: it has failed and its flows wait.
  virtual void changeLink(int link, double bits_per_s, double now_s) = 0;

  // Statistics: bytes of started flows per link; the level's events; packets times links (0 at flow
  // level).
  virtual std::vector<double> linkBytes() const = 0;
  virtual int64_t events() const = 0;
  virtual int64_t packetHops() const { return 0; }
};

// A network whose circuits can move while flows wait (Reconfigurer).
class ReconfigurableNetwork : public Network {
 public:
  // While held, flows send no new data; data in flight continues.
  virtual void hold(bool held) = 0;
  // Returns whether no data in flight depends on links.
  virtual bool drained() const = 0;
  // Unsent bytes of flows per route; positive while there are flows.
  virtual std::vector<double> waitingBytes() const = 0;
  // Sets the paths of flows on these routes at once. Throws std::invalid_argument for an unknown
  // path, or one with wrong ends.
  virtual void reroute(const std::vector<std::pair<int, const PairPath*>>& paths) = 0;
};

}  // namespace topoopt
