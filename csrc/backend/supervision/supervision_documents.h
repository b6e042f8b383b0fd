// The two documents of a rank for those who watch its job: pickles of plain values.

#pragma once

#include <string>
#include <vector>

#include "backend/supervision/flight_recorder.h"
#include "transport/links/link.h"

namespace topoopt {

// Which rank of which job.
struct SupervisedRank {
  int rank = 0;  // in torch.distributed, as world_size
  int world_size = 1;
  int server = 0;
  int attempt = 0;  // of the job: how often it was restarted
  // As PyTorch's analyzer wants them: the first part of an operation's name, and a sender that is
  // not known. These are of torch 2.15; what analyzers do not know ends them, or they warn of each
  // entry.
  std::string library = "c10d";
  std::string any_sender = "?";
};

// The counters of this rank's links, and those of `seconds` earlier.
struct LinkReadings {
  std::vector<LinkTraffic> now;
  std::vector<LinkTraffic> before;  // empty: there was no earlier reading
  double seconds = 0;
};

// In the format of PyTorch's flight recorder, so that its analyzer reads it; what we add stands
// under the key "topoopt", of the document and of each entry. `why`: what it was written for.
std::string dumpDocument(const SupervisedRank& of, const FlightRecorder& recorder,
                         const LinkReadings& links, const std::string& why);

// `recorder` may be nullptr; `why`: what has failed, or "".
std::string statusDocument(const SupervisedRank& of, const FlightRecorder* recorder,
                           const LinkReadings& links, uint64_t iteration, const std::string& why);

}  // namespace topoopt
