// What a rank under NCCL is told of the network: a text that torch_topoopt.fabric.nccl_wiring
// writes. One line says one thing, words are separated by blanks:
//
//   topoopt-nccl-wiring 1
//   job ASKED SAID                           64 hexadecimal digits each: what the dialling end of a
//                                            cable says, and what the other one answers
//   ranks N
//   cable S SPORT T TPORT duplex|simplex GBPS ADDRESS ADDRESS TCPPORT PACE PACE
//                                            S dials T, which listens; what each end sends at most,
//                                            in Gb/s (0: no limit)
//   route WEIGHT R0 R1 ...

#pragma once

#include <string>
#include <vector>

#include "plan/network.h"

namespace topoopt::nccl {

struct Cable {
  plan::Link link;
  bool duplex = true;
  double gbps = 0;  // 0: not known
  std::string source_address{};
  std::string target_address{};
  int tcp_port = 0;
  double source_pace_gbps = 0;
  double target_pace_gbps = 0;
};

struct Wiring {
  std::string asked{};
  std::string said{};
  int ranks = 0;
  std::vector<Cable> cables{};
  std::vector<plan::Route> routes{};

  // Throws std::runtime_error with the line that is wrong, or with why there is none.
  static Wiring load(const std::string& path);
};

}  // namespace topoopt::nccl
