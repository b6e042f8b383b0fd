// The way of every frame that leaves this rank, its own and those that it relays.
//
// A frame is in one of three states. Planned: it follows the route that it names. On a detour: a
// cable of that route is lost, and every rank sends it over the shortest way that is left. It never
// becomes planned again, because ranks behind the gap may not be on its route. Stranded: there is
// no way, until findWays() finds one.
//
// Invariant: no frame between two ranks is dropped here. A relay never waits for room at the next
// hop; instead it fails the job if a source has more bytes here than flow_limits.h says.
//
// Everything runs on the reactor thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/network.h"
#include "transport/endpoint/cable_graph.h"
#include "transport/endpoint/open_links.h"
#include "transport/frames/flow_limits.h"
#include "transport/frames/frame.h"
#include "transport/frames/frame_queue.h"

namespace topoopt {

class Routes {
 public:
  // One route of a pair of ranks.
  struct Hop {
    Link* link = nullptr;  // from here on; nullptr: this rank is not on the route
    double weight = 0;
    uint32_t payload_bytes = kRelayedPayloadBytes;  // of a frame, at most
    const plan::Route* route = nullptr;             // of the plan; nullptr: the link alone
    bool whole = true;                              // no cable of it is lost
  };

  // All routes of one pair.
  class Ways {
   public:
    explicit Ways(std::vector<Hop> hops) : hops_(std::move(hops)), used_(hops_.size(), 0.0) {}

    const std::vector<Hop>& hops() const { return hops_; }
    void setWhole(size_t route, bool whole) { hops_[route].whole = whole; }

    // The route that is furthest behind its weight, over all flows: many short messages, each a
    // flow of its own, spread as one long one does. Whole routes go first.
    size_t next() const;
    // The most payload of a frame. Over parallel links to a neighbour a message goes in parts, so
    // that it takes all of them at once.
    size_t framePayload(size_t message_bytes, size_t route) const;
    // A frame with so much payload takes the route.
    void charge(size_t route, size_t payload_bytes);
    // Whether other ranks relay frames, on some route at least.
    bool relayed() const;

   private:
    std::vector<Hop> hops_;
    std::vector<double> used_;  // of each route: bytes / weight
  };

  // `routes` outlives this, as all references do. `graph` is null if links are not cables. Throws
  // std::invalid_argument if a route needs a link that is not there.
  Routes(int rank, const OpenLinks& links, const std::vector<plan::Route>& routes,
         const CableGraph* graph, const FlowLimits& limits, BufferPool& buffers, FailJob fail);

  // From this rank; nullptr if the plan has none.
  Ways* waysTo(int target);

  // A data frame of this rank, over the route that it names.
  void send(const Ways& ways, OutFrame frame);
  // A frame of this rank without place in a flow, over the first route. The source is set here.
  void sendControl(int target, FrameHeader header, const std::string& payload);
  // To all neighbours but the one of `except`.
  void flood(FrameHeader header, const std::string& text, const Link* except);
  // A frame of another rank, for another rank.
  void relay(const FrameHeader& header, PayloadBuffer payload);
  // A frame that has lost its link, or has none yet. Drops what is about one link, or is flooded.
  void dispatch(OutFrame frame);

  // The graph, or a link, has changed.
  void findWays();

  // Drops this rank's frames on the channel and calls `dropped` for each.
  void dropOwn(uint32_t channel, const std::function<void(const FrameHeader&)>& dropped);

 private:
  using Pair = std::pair<int, int>;

  using Neighbours = std::map<int, std::vector<Link*>>;

  Hop hopOfPlan(const plan::Route& route, size_t number, const Neighbours& neighbours) const;
  const Hop* hopOf(const FrameHeader& header) const;
  bool mayRelay(const FrameHeader& header);
  Link* wayOf(FrameHeader& header) const;
  Link* usableLinkTo(int neighbour) const;
  bool isWhole(const Pair& pair, const Hop& hop) const;

  const int rank_;
  const OpenLinks& links_;
  const CableGraph* const graph_;
  const FlowLimits& limits_;
  BufferPool& buffers_;
  const FailJob fail_;
  std::map<Pair, Ways> ways_;  // of every pair whose bytes can pass through this rank
  std::vector<OutFrame> stranded_;
};

}  // namespace topoopt
