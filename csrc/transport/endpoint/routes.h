// The way of every frame that leaves this rank, its own and those that it relays.
//
// A frame is in one of three states. Planned: it follows the route that it names. On a detour: a
// cable of that route is lost, and every rank sends it over the shortest way that is left. It never
// becomes planned again, because ranks behind the gap may not be on its route. Stranded: there is
// no way, until findWays() finds one.
//
// Besides the routes of the plan, all ranks know further ones (plan/route_choices.h), which single
// messages may take: see divided() and RouteName.
//
// Invariant: no frame between two ranks is dropped here. A relay never waits for room at the next
// hop; instead it fails the job if a source has more bytes here than flow_limits.h says.
//
// Everything runs on the reactor thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/network.h"
#include "plan/route_choices.h"
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
    // Of one message of `bytes`: each route carries its weight of them exactly, but for the parts
    // that are too small for a frame.
    // `size`: see RouteName.
    Ways(std::vector<Hop> hops, size_t bytes, size_t size);

    const std::vector<Hop>& hops() const { return hops_; }
    void setWhole(size_t route, bool whole) { hops_[route].whole = whole; }

    // See RouteName.
    uint16_t name(size_t route) const {
      return left_.empty() ? static_cast<uint16_t>(route) : RouteName::ofChoice(route, size_);
    }
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
    std::vector<double> used_;    // of each route: bytes / weight
    std::vector<size_t> left_{};  // of one message: bytes for each route
    size_t size_ = RouteName::kMeanSize;
  };

  // `routes` outlives this, as all references do. `graph` is null if links are not cables. Throws
  // std::invalid_argument if a route needs a link that is not there.
  Routes(int rank, const OpenLinks& links, const std::vector<plan::Route>& routes,
         const CableGraph* graph, const FlowLimits& limits, BufferPool& buffers, FailJob fail);

  // From this rank; nullptr if the plan has none.
  Ways* waysTo(int target);

  // Routes between servers that single messages may take. nullptr if links are not cables, or if
  // kernels forward connections.
  const RouteChoices* choices();
  // No cable is lost or slow. Otherwise all messages take the ways of waysTo().
  bool intact() const { return intact_; }
  // The ways of one message: `shares` are those of the choices between both servers. Messages of
  // the all-to-all have `mean_bytes`.
  std::shared_ptr<Ways> divided(int target, const std::vector<double>& shares, size_t bytes,
                                double mean_bytes);

  // A data frame of this rank, over the route that it names.
  void send(const Hop& hop, OutFrame frame);
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

  Hop hopOn(const plan::Route& route, size_t number) const;
  const Hop* hopOf(const FrameHeader& header);
  void findChoices();
  const Ways& choicesOf(const Pair& pair);
  bool mayRelay(const FrameHeader& header);
  Link* wayOf(FrameHeader& header);
  Link* usableLinkTo(int neighbour) const;
  bool isWhole(const Pair& pair, const Hop& hop) const;

  const int rank_;
  const OpenLinks& links_;
  const CableGraph* const graph_;
  const FlowLimits& limits_;
  BufferPool& buffers_;
  const FailJob fail_;
  const Neighbours neighbours_;
  std::map<Pair, Ways> ways_;  // of every pair whose bytes can pass through this rank
  bool intact_;
  bool choices_known_ = false;  // they are found on first use
  std::unique_ptr<const RouteChoices> choices_{};
  std::vector<int> leaders_{};               // first rank of each server
  size_t copies_ = 1;                        // of a choice, so that parallel links are used alike
  std::deque<plan::Route> choice_routes_{};  // references of hops
  std::map<Pair, Ways> choice_ways_{};       // as they are needed
  std::vector<OutFrame> stranded_;
};

}  // namespace topoopt
