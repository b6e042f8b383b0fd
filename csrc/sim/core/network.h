// The contract of a simulated network: both levels implement it, a TaskRunner drives it.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/path_table.h"
#include "sim/core/task_graph.h"

namespace topoopt {

// Events closer together than this part of the time count as simultaneous.
constexpr double kSimultaneous = 1e-12;

// An instance is one network with a clock of its own that starts at 0 and only moves forward.
class Network {
 public:
  virtual ~Network() = default;

  // Forgets all flows and changes of links; back to time 0.
  virtual void reset() = 0;

  // Flow `flow` (any number that is not under way) begins at `now_s`, which is not before the time
  // that advance() has returned last. `task` says which route it takes and how many bytes it has.
  virtual void start(int flow, const Task& task, double now_s) = 0;

  // Moves on until `until_s` (may be infinity), or to the first time before it at which flows are
  // delivered; these are appended to `delivered` in ascending order. Returns the time reached,
  // infinity if `until_s` is and nothing under way will ever end. A level that works long between
  // deliveries may return earlier, with nothing delivered, so that its caller can show progress.
  virtual double advance(double until_s, std::vector<int>& delivered) = 0;

  // From `now_s` on `link` has this rate; 0: it has failed, and what is on it waits.
  virtual void changeLink(int link, double bits_per_s, double now_s) = 0;

  // So far: bytes of flows that have begun to cross each link; what the level counts as an event;
  // packets times links (0 at flow level).
  virtual std::vector<double> linkBytes() const = 0;
  virtual int64_t events() const = 0;
  virtual int64_t packetHops() const { return 0; }
};

// A network whose circuits move while flows wait for them (Reconfigurer).
class ReconfigurableNetwork : public Network {
 public:
  // While it is held, flows send nothing new, and what is in the network goes on.
  virtual void hold(bool held) = 0;
  // Whether nothing is in the network that a link could lose.
  virtual bool drained() const = 0;
  // Per route, the bytes that its flows still have to send; above 0 as long as there are flows.
  virtual std::vector<double> waitingBytes() const = 0;
  // At once: flows on these routes take these paths. Throws std::invalid_argument for a path that
  // is unknown to the level, or does not lead from source to target.
  virtual void reroute(const std::vector<std::pair<int, const PairPath*>>& paths) = 0;
};

}  // namespace topoopt
