// The status and the dump of a rank, as pickles of plain values.

#pragma once

#include <string>
#include <vector>

#include "backend/supervision/flight_recorder.h"
#include "transport/links/link.h"

namespace topoopt {

// The identity of a rank.
struct SupervisedRank {
  int rank = 0;  // in torch.distributed, as is world_size
  int world_size = 1;
  int server = 0;
  int attempt = 0;  // number of restarts of the job
  // Values that PyTorch's analyzer requires: the prefix of operation names and the number of an
  // unknown sender, as in torch 2.15. Unknown values stop analyzers or cause warnings for each
  // entry.
  std::string library = "c10d";
  std::string any_sender = "?";
};

// The counters of this rank's links, now and `seconds` earlier.
struct LinkReadings {
  std::vector<LinkTraffic> now;
  std::vector<LinkTraffic> before;  // empty: no earlier reading
  double seconds = 0;
};

// In the format of PyTorch's flight recorder, for its analyzer; the document and each entry have
// additions under the key "topoopt". `why`: the reason for the dump.
std::string dumpDocument(const SupervisedRank& of, const FlightRecorder& recorder,
                         const LinkReadings& links, const std::string& why);

// `recorder` may be nullptr; `why`: the failure, or "".
std::string statusDocument(const SupervisedRank& of, const FlightRecorder* recorder,
                           const LinkReadings& links, uint64_t iteration, const std::string& why);

}  // namespace topoopt
