#include "nccl/wiring.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

namespace topoopt::nccl {

namespace {

constexpr int kMostRanks = 1024;  // limited by the connection numbers
constexpr size_t kTokenDigits = 64;

constexpr int kNoRank = -1;

bool isToken(const std::string& text) {
  return text.size() == kTokenDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool isBelow(int number, size_t count) {
  return number >= 0 && static_cast<size_t>(number) < count;
}

std::string bytesOf(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

bool readRanks(std::istringstream& words, Wiring& wiring) {
  for (int server; words >> server;) {
    if (!isBelow(server, kMostRanks)) return false;
    const auto count = static_cast<size_t>(server) + 1;
    if (wiring.leaders.size() < count) wiring.leaders.resize(count, kNoRank);
    int& leader = wiring.leaders[count - 1];
    if (leader == kNoRank) leader = wiring.ranks();
    wiring.servers.push_back(server);
  }
  const bool all =
      std::find(wiring.leaders.begin(), wiring.leaders.end(), kNoRank) == wiring.leaders.end();
  return words.eof() && all && wiring.ranks() > 1 && wiring.ranks() <= kMostRanks;
}

bool readCable(std::istringstream& words, Wiring& wiring) {
  Cable cable;
  std::string ports, key;
  plan::LinkPorts& link = cable.link;
  words >> link.source >> link.source_port >> link.target >> link.target_port >> ports >>
      cable.gbps >> cable.source_address >> cable.target_address >> cable.tcp_port >>
      cable.source_pace_gbps >> cable.target_pace_gbps >> cable.source_unsent_bytes >>
      cable.target_unsent_bytes >> key;
  cable.duplex = ports == "duplex";
  const bool encrypted = isToken(key);
  if (encrypted) cable.tls_key = bytesOf(key);
  const bool good = words && isBelow(link.source, wiring.leaders.size()) &&
                    isBelow(link.target, wiring.leaders.size()) && link.source != link.target &&
                    (encrypted || key == "-") && (cable.duplex || ports == "simplex") &&
                    cable.gbps >= 0 && cable.source_pace_gbps >= 0 && cable.target_pace_gbps >= 0 &&
                    cable.source_unsent_bytes > 0 && cable.target_unsent_bytes > 0 &&
                    cable.tcp_port > 0 && cable.tcp_port < 65536;
  wiring.cables.push_back(cable);
  return good;
}

// Reads a positive weight, and two or more numbers below `count`.
bool readWeighted(std::istringstream& words, size_t count, double& weight, std::vector<int>& list) {
  words >> weight;
  if (!words || !(weight > 0) || !std::isfinite(weight)) return false;
  for (int number; words >> number;) {
    if (!isBelow(number, count)) return false;
    list.push_back(number);
  }
  return words.eof() && list.size() > 1;
}

bool readRoute(std::istringstream& words, Wiring& wiring) {
  plan::Route& route = wiring.routes.emplace_back();
  return readWeighted(words, wiring.servers.size(), route.weight, route.servers);
}

bool readRing(std::istringstream& words, Wiring& wiring) {
  const size_t count = wiring.leaders.size();
  plan::Ring& ring = wiring.rings.emplace_back();
  if (!readWeighted(words, count, ring.share, ring.servers)) return false;
  const std::set<int> different(ring.servers.begin(), ring.servers.end());
  return ring.servers.size() == count && different.size() == count;
}

bool readLine(const std::string& line, Wiring& wiring) {
  std::istringstream words(line);
  std::string kind;
  words >> kind;
  if (kind == "job") {
    words >> wiring.request_token >> wiring.answer_token;
    return isToken(wiring.request_token) && isToken(wiring.answer_token) &&
           wiring.request_token != wiring.answer_token;
  }
  if (kind == "ranks") return readRanks(words, wiring);
  if (kind == "cable") return readCable(words, wiring);
  if (kind == "ring") return readRing(words, wiring);
  return kind == "route" && readRoute(words, wiring);
}

}  // namespace

Wiring Wiring::load(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) throw std::runtime_error(path + ": cannot be read, or is empty");
  if (line != "topoopt-nccl-wiring 4") {
    throw std::runtime_error(path + ": line 1 is not \"topoopt-nccl-wiring 4\"");
  }
  Wiring wiring;
  for (int number = 2; std::getline(file, line); ++number) {
    if (!readLine(line, wiring)) {
      throw std::runtime_error(path + ": line " + std::to_string(number) + " is wrong: " + line);
    }
  }
  if (wiring.request_token.empty() || wiring.servers.empty()) {
    throw std::runtime_error(path + ": needs the lines job and ranks");
  }
  return wiring;
}

}  // namespace topoopt::nccl
