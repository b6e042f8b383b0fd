// The network of a job for NCCL ranks: a text that torch_topoopt.links.nccl_wiring writes. Each
// line is one entry, with words separated by blanks:
//
//   topoopt-nccl-wiring 4
//   job REQUEST REPLY      greetings of a cable's dialling and listening end, 64 hexadecimal digits
//   ranks S0 S1 ...        the server of each rank; its lowest rank has its cables
//   cable S SPORT T TPORT duplex|simplex GBPS ADDRESS ADDRESS TCPPORT PACE PACE UNSENT UNSENT KEY
//                          server S dials T; sending limits of both ends in Gb/s (0: none); limits
//                          of unsent bytes; TLS 1.3 key, 64 hexadecimal digits ("-": no encryption)
//   route WEIGHT R0 R1 ... over ranks
//   ring SHARE S0 S1 ...   over all servers: for collectives

#pragma once

#include <string>
#include <vector>

#include "plan/network.h"

namespace topoopt::nccl {

constexpr double kBytesPerGbps = 1e9 / 8;

struct Cable {
  plan::LinkPorts link;
  bool duplex = true;
  double gbps = 0;  // 0: unknown
  std::string source_address{};
  std::string target_address{};
  int tcp_port = 0;
  double source_pace_gbps = 0;
  double target_pace_gbps = 0;
  int source_unsent_bytes = 0;
  int target_unsent_bytes = 0;
  std::string tls_key{};  // 32 bytes, or empty
};

struct Wiring {
  std::string request_token{};
  std::string answer_token{};
  std::vector<int> servers{};  // by rank
  std::vector<int> leaders{};  // by server: the rank that has its cables
  std::vector<Cable> cables{};
  std::vector<plan::Route> routes{};
  std::vector<plan::Ring> rings{};

  // Throws std::runtime_error with the invalid line, or if the file is unreadable.
  static Wiring load(const std::string& path);

  int ranks() const { return static_cast<int>(servers.size()); }
  int serverCount() const { return static_cast<int>(leaders.size()); }
  int serverOf(int rank) const { return servers[static_cast<size_t>(rank)]; }
  // The rank with the cables of the dialling or listening server.
  int dialler(const Cable& cable) const { return leaderOf(cable.link.source); }
  int listener(const Cable& cable) const { return leaderOf(cable.link.target); }

 private:
  int leaderOf(int server) const { return leaders[static_cast<size_t>(server)]; }
};

}  // namespace topoopt::nccl
