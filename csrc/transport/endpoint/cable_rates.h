// The rates of this rank's cables, compared with their earlier rates and with each other.
//
// A cable is at its usual rate or slow (rate_watch.h). The connections of a link that has several
// share what it carries, so their rates are judged together: one alone is slow whenever the others
// are fast. A cable that shares an interface, or crosses cables of other ranks, is never measured,
// because their traffic limits it: it can only be distrusted, and then retried.
//
// Invariant: every change of a cable's speed is reported exactly once.
//
// Everything runs on the reactor thread.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "transport/endpoint/cable_graph.h"
#include "transport/interface_traffic.h"
#include "transport/links/link.h"
#include "transport/rate_watch.h"

namespace topoopt {

class CableRates {
 public:
  using Clock = RateWatch::Clock;
  using Report = std::function<void(int cable, double speed)>;

  CableRates(const CableGraph& graph, Report report) : graph_(graph), report_(std::move(report)) {}

  // All cables, then joinConnections() once.
  void add(const LinkSpec& spec, Link& link);
  void joinConnections();

  // The interface of its connection; 0 if that is not known.
  int interfaceAt(int cable) const { return cables_.at(cable).interface; }
  void setInterface(int cable, int interface) { cables_.at(cable).interface = interface; }
  // The number of cables that go through its interface, to a switch. Each of them may have to wait
  // for what all others have sent: here, and where it arrives, at the switch.
  int cablesAtInterfaceOf(int cable) const;

  // Now and then.
  void look(int cable);
  bool isSlow(int cable) const;
  // Acknowledgements wait, and what is sent does, while hosts send what they forward.
  bool isCrowded(int cable) const;
  // It goes over cables of others, by hosts that forward: packets wait wherever those are full.
  bool isForwarded(int cable) const { return plannedRate(cables_.at(cable)) <= 0; }

  // It carries nothing large until it is retried.
  void distrust(int cable, Clock::time_point now);
  // It has another path.
  void trust(int cable);
  // Its counters restart.
  void restart(int cable) { cables_.at(cable).rate.restart(); }
  void restartAll();

 private:
  struct Joint;
  struct Watched {
    Link* link = nullptr;
    LinkSpec spec{};
    int interface = 0;
    RateWatch rate{};
    Joint* joint = nullptr;  // if the link has several connections
  };
  // A link that has several connections, each of them a cable.
  struct Joint {
    std::vector<Watched*> connections{};
    JointProgress progress{};
    RateWatch rate{};
  };

  int sendersAt(int interface) const;
  double plannedRate(const Watched& cable) const;
  double bestPart() const;
  std::optional<SendProgressCounters> progressOf(const Watched& cable);
  void lookJointly(Joint& joint);
  void report(const Watched& cable, const RateWatch::Change& change);

  const CableGraph& graph_;
  const Report report_;
  std::map<int, Watched> cables_;
  std::vector<std::unique_ptr<Joint>> joint_;
  InterfaceReader interfaces_;
};

}  // namespace topoopt
