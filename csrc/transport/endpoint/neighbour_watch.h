// Silence of neighbours whose links are no cables: inside a server, or over hosts that forward.
//
// A neighbour is heard, or quiet for a number of looks. There is no other way to it, so one that is
// quiet for the silence limit fails the job, whatever the reason.
//
// Invariant: this rank sends something to every such neighbour between two looks, so a process that
// runs is never quiet.
//
// Everything runs on the reactor thread.

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "transport/endpoint/job_end.h"
#include "transport/endpoint/open_links.h"
#include "transport/frames/frame.h"
#include "transport/reactor.h"

namespace topoopt {

class NeighbourWatch {
 public:
  NeighbourWatch(std::chrono::milliseconds silence_limit, Reactor& reactor, const OpenLinks& links,
                 const JobStatus& status, FailJob fail);

  void start();
  // Neighbours are not judged between these.
  void hold() { held_ = true; }
  void letGo();

 private:
  struct Neighbour {
    Link* link;
    int rank;
    int quiet_looks = 0;  // nothing has arrived
  };

  void look();

  const std::chrono::milliseconds silence_limit_;
  Reactor& reactor_;
  const JobStatus& status_;
  const FailJob fail_;
  std::vector<Neighbour> neighbours_;
  bool held_ = false;
};

FrameHeader heartbeat();
// Why a rank fails the job whose host still answers.
std::string stoppedText(int rank, std::chrono::milliseconds silence_limit);
inline constexpr const char* kNoAnswer = "nothing is acknowledged";

}  // namespace topoopt
