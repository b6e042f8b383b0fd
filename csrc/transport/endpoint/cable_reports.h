// The reports of all ranks about their cables, and the reactions of this rank.
//
// A report is flooded by the rank at an end of the cable, and passed on by every rank that learns
// something new from it (cable_graph.h). After each change frames take other ways, and the groups
// are notified a short time later, once for all reports that come together.
//
// Ranks that cannot be reached fail the job: as soon as late reports cannot say otherwise, if their
// hosts have closed all their connections; else after the silence limit, as they may come back.
//
// Invariant: two ranks that are linked know the same reports once all frames have arrived. A link
// that is new gets all of them with greet(), because it was left out of floods while it was down.
//
// Everything runs on the reactor thread.

#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>

#include "transport/endpoint/cable_graph.h"
#include "transport/endpoint/job_end.h"
#include "transport/endpoint/open_links.h"
#include "transport/endpoint/routes.h"
#include "transport/reactor.h"

namespace topoopt {

class CableReports {
 public:
  // `changed` notifies the groups. All references outlive this.
  CableReports(int rank, std::chrono::milliseconds silence_limit, Reactor& reactor,
               CableGraph& graph, Routes& routes, const JobStatus& status, FailJob fail,
               std::function<void()> changed);

  // Of the end of a cable here: it is up, or lost, in this generation.
  void reportUp(int cable, uint64_t generation);
  void reportLost(int cable, uint64_t generation, Loss loss);
  // `speed`: the part of its usual rate that the cable carries from here.
  void reportSpeed(int cable, double speed);
  // kCableState; react() follows. False if it is about no cable.
  bool onState(const Link& link, const FrameHeader& header);
  // kCableSpeed
  void onSpeed(const Link& link, const FrameHeader& header);

  // Reports have come, or a link has changed.
  void react();
  void announce();
  void greet(Link& link) const;

 private:
  void take(const CableReport& report, const Link* except);
  void takeSpeed(const CableSpeed& report, const Link* except);
  void judgeReach();
  void failUnreachable(const CableGraph::Cut& cut);

  const int rank_;
  const std::chrono::milliseconds silence_limit_;
  Reactor& reactor_;
  CableGraph& graph_;
  Routes& routes_;
  const JobStatus& status_;
  const FailJob fail_;
  const std::function<void()> changed_;
  std::map<int, uint64_t> own_speeds_;  // by cable: speeds that were reported
  bool announced_ = false;
  std::optional<Reactor::Clock::time_point> cut_since_;  // ranks cannot be reached
  std::optional<Reactor::TimerId> cut_timer_;
};

}  // namespace topoopt
