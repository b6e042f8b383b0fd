#include "nccl/wiring.h"

#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace topoopt::nccl {

namespace {

constexpr int kMostRanks = 1024;  // as many as there are numbers of connections for
constexpr size_t kTokenDigits = 64;

bool isToken(const std::string& text) {
  return text.size() == kTokenDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool isRank(int rank, int ranks) { return rank >= 0 && rank < ranks; }

bool readCable(std::istringstream& words, Wiring& wiring) {
  Cable cable;
  std::string ports;
  plan::Link& link = cable.link;
  words >> link.source >> link.source_port >> link.target >> link.target_port >> ports >>
      cable.gbps >> cable.source_address >> cable.target_address >> cable.tcp_port >>
      cable.source_pace_gbps >> cable.target_pace_gbps;
  cable.duplex = ports == "duplex";
  const bool good = words && isRank(link.source, wiring.ranks) &&
                    isRank(link.target, wiring.ranks) && link.source != link.target &&
                    (cable.duplex || ports == "simplex") && cable.gbps >= 0 &&
                    cable.source_pace_gbps >= 0 && cable.target_pace_gbps >= 0 &&
                    cable.tcp_port > 0 && cable.tcp_port < 65536;
  wiring.cables.push_back(cable);
  return good;
}

bool readRoute(std::istringstream& words, Wiring& wiring) {
  plan::Route route;
  words >> route.weight;
  if (!words || !(route.weight > 0) || !std::isfinite(route.weight)) return false;
  for (int rank; words >> rank;) {
    if (!isRank(rank, wiring.ranks)) return false;
    route.servers.push_back(rank);
  }
  const bool good = words.eof() && route.servers.size() > 1;
  wiring.routes.push_back(std::move(route));
  return good;
}

bool readLine(const std::string& line, Wiring& wiring) {
  std::istringstream words(line);
  std::string kind;
  words >> kind;
  if (kind == "job") {
    words >> wiring.asked >> wiring.said;
    return isToken(wiring.asked) && isToken(wiring.said) && wiring.asked != wiring.said;
  }
  if (kind == "ranks") {
    words >> wiring.ranks;
    return words && wiring.ranks > 1 && wiring.ranks <= kMostRanks;
  }
  if (kind == "cable") return readCable(words, wiring);
  return kind == "route" && readRoute(words, wiring);
}

}  // namespace

Wiring Wiring::load(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) throw std::runtime_error(path + ": cannot be read, or is empty");
  if (line != "topoopt-nccl-wiring 1") {
    throw std::runtime_error(path + ": line 1 is not \"topoopt-nccl-wiring 1\"");
  }
  Wiring wiring;
  for (int number = 2; std::getline(file, line); ++number) {
    if (!readLine(line, wiring)) {
      throw std::runtime_error(path + ": line " + std::to_string(number) + " is wrong: " + line);
    }
  }
  if (wiring.asked.empty() || wiring.ranks == 0 || wiring.cables.empty()) {
    throw std::runtime_error(path + ": needs the lines job, ranks and cable");
  }
  return wiring;
}

}  // namespace topoopt::nccl
