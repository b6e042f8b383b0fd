// The cables that end at this rank: their connections are watched, lost, replaced and moved.
//
// A cable is in one of three states. In use: its link is usable. Lost: its connection is gone, the
// other ranks are notified, and it needs a new one. Joining: it has a new connection, over which
// the other end has not said yet how many frames have arrived.
//
// Both ends of a lost cable exchange, over other cables, how many frames have arrived (kLinkLost);
// a new connection begins with the same counts (kLinkHello), so cables may come back where no other
// way is left. An end counts only when it has read all that its transport has acknowledged, and
// acknowledges nothing more (Link::drop). Frames that were not yet written need not wait for that.
//
// A cable that moves to another connection is not lost for other ranks: its ends make the same
// exchange by themselves, within a few round trips. The end that dials says so before (beginMove)
// and keeps the old connection until the other end, which has the new one first, closes it.
//
// Invariant: a frame that a lost connection has not delivered is sent again exactly once, over
// whatever way is left (cable_ledger.h).
//
// Everything runs on the reactor thread, except event().

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/carrier_watch.h"
#include "transport/descriptor.h"
#include "transport/endpoint/cable_ledger.h"
#include "transport/endpoint/cable_rates.h"
#include "transport/endpoint/cable_reports.h"
#include "transport/endpoint/job_end.h"
#include "transport/endpoint/open_links.h"
#include "transport/endpoint/routes.h"
#include "transport/frames/frame.h"
#include "transport/frames/frame_queue.h"
#include "transport/reactor.h"

namespace topoopt {

// Longer than a processor takes to finish a packet that it is handling (Link::finishReading).
inline constexpr std::chrono::milliseconds kLateTime{20};

class LocalCables {
 public:
  struct Config {
    int rank;
    std::chrono::milliseconds tick;
    std::chrono::milliseconds silence_limit;
  };

  // All references outlive this. Throws std::invalid_argument if a link names no cable of the
  // graph, or one that another link has; std::system_error.
  LocalCables(const Config& config, Reactor& reactor, const OpenLinks& links,
              const CableGraph& graph, Routes& routes, CableReports& reports,
              const JobStatus& status, FailJob fail);

  // Reads and watches the interfaces.
  void start();
  void stop();
  // Once in a tick.
  void tick();
  // Cables are not judged between these.
  void hold() { held_ = true; }
  void letGo();

  // The link of a cable is dead.
  void onLost(Link& link, Loss loss, const std::string& why);
  // Frames about cables.
  void onState(const Link& link, const FrameHeader& header);
  void onLinkLost(const FrameHeader& header);
  void onLinkHello(Link& link, const FrameHeader& header);

  // Any thread: readable while lost() or slow() may have changed; the reader empties it.
  int event() const { return event_.get(); }
  std::vector<int> lost() const;
  std::vector<int> slow() const;
  // See Endpoint.
  void replace(int cable, int fd, std::string tls_key);
  bool beginMove(int cable);
  void endMove(int cable);
  void limitRate(int cable, std::optional<uint64_t> bytes_per_s);

 private:
  // A cable that ends here, and what became of its connections.
  struct OwnCable {
    Link* link = nullptr;
    LinkSpec spec{};
    CableLedger ledger{};
    FrameQueue::Kept kept{};  // until the ledger settles
    bool unreported = false;  // it is lost here, and other ranks are not notified
    bool moving = false;      // this end is dialling a new connection while it is in use
    int old_ticks = 0;        // a new connection waits for the end of the old one
    int waiting_fd = -1;      // a new connection, while the old one is being given up
    std::string waiting_key{};
    int quiet_ticks = 0;       // nothing has arrived
    int unanswered_ticks = 0;  // nothing has been acknowledged
    int standing_ticks = 0;    // nor anything of what is in flight
    // When one of the two ended a connection.
    std::optional<Reactor::Clock::time_point> last_standstill{};
    int joining_ticks = 0;  // the other end has not greeted
  };

  OwnCable* find(int cable);
  void join(OwnCable& cable, int fd, std::string tls_key);
  void reportLost(OwnCable& cable, Loss loss);
  void sendLinkLost(const OwnCable& cable);
  void settle(OwnCable& cable, uint64_t received);
  void confirmUp(const OwnCable& cable);
  void onCarrierLost(int interface);
  void tickCable(OwnCable& cable);
  const char* standstillOf(OwnCable& cable);
  void signal();

  const Config config_;
  Reactor& reactor_;
  const CableGraph& graph_;
  Routes& routes_;
  CableReports& reports_;
  const JobStatus& status_;
  const FailJob fail_;
  std::map<int, OwnCable> cables_;
  CableRates rates_;
  std::unique_ptr<CarrierWatch> carriers_;
  bool held_ = false;
  Descriptor event_;
};

}  // namespace topoopt
