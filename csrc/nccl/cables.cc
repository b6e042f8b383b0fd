#include "nccl/cables.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

#include "common/thread.h"

namespace topoopt::nccl {

namespace {

constexpr std::chrono::milliseconds kGreetingLimit{2000};
constexpr std::chrono::milliseconds kBetweenDials{100};
constexpr int kLocal = INT32_MAX;  // in a greeting, instead of a cable
constexpr size_t kNamedDigits = 32;

struct Greeting {
  std::array<char, 64> token;
  uint32_t cable;
  uint32_t rank;
};

sockaddr_in addressOf(const std::string& text, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1) {
    throw std::runtime_error(text + " is not an IPv4 address");
  }
  return address;
}

std::string textOf(int cable, const Cable& of) {
  return "cable " + std::to_string(cable) + " (server " + std::to_string(of.link.source) + " " +
         of.source_address + " to server " + std::to_string(of.link.target) + " " +
         of.target_address + ":" + std::to_string(of.tcp_port) + ")";
}

void setLimit(int fd, std::chrono::milliseconds limit) {
  const timeval time{limit.count() / 1000, limit.count() % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

void prepare(int fd, int unsent_bytes, double pace_gbps) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof unsent_bytes);
  if (pace_gbps > 0) {
    const auto rate = static_cast<uint64_t>(pace_gbps * kBytesPerGbps);
    setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
  }
  setLimit(fd, std::chrono::milliseconds(0));
}

bool say(int fd, const std::string& token, int cable, int rank) {
  Greeting greeting{{}, htonl(static_cast<uint32_t>(cable)), htonl(static_cast<uint32_t>(rank))};
  std::copy(token.begin(), token.end(), greeting.token.begin());
  return ::send(fd, &greeting, sizeof greeting, MSG_NOSIGNAL) == sizeof greeting;
}

// Reads the other end's cable and rank, or {-1, -1}.
std::pair<int, int> hear(int fd, const std::string& token) {
  Greeting greeting{};
  if (::recv(fd, &greeting, sizeof greeting, MSG_WAITALL) != sizeof greeting) return {-1, -1};
  if (!std::equal(token.begin(), token.end(), greeting.token.begin())) return {-1, -1};
  return {static_cast<int>(ntohl(greeting.cable)), static_cast<int>(ntohl(greeting.rank))};
}

// Duplicates the connection for an owner of raw descriptors.
int handOver(Descriptor connection) { return fcntl(connection.get(), F_DUPFD_CLOEXEC, 0); }

bool waitFor(int fd, std::chrono::milliseconds limit) {
  pollfd wanted{fd, POLLIN, 0};
  return ::poll(&wanted, 1, static_cast<int>(limit.count())) > 0;
}

// Abstract socket name of a rank of this job. It is local to the network namespace, needs no file,
// and ends with its socket.
std::pair<sockaddr_un, socklen_t> localAddress(const Wiring& wiring, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name =
      "topoopt-nccl/" + wiring.request_token.substr(0, kNamedDigits) + "/" + std::to_string(rank);
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

bool isOwnUser(int fd) {
  ucred other{};
  socklen_t bytes = sizeof other;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 && other.uid == geteuid();
}

}  // namespace

Cables::Cables(Wiring wiring, int rank)
    : wiring_(std::move(wiring)), rank_(rank), stop_event_(eventfd(0, EFD_CLOEXEC)) {
  std::set<std::pair<std::string, int>> listening;
  for (const Cable& cable : wiring_.cables) {
    if (wiring_.listener(cable) != rank_) continue;
    if (listening.emplace(cable.target_address, cable.tcp_port).second) {
      listeners_.push_back(listenAt(cable));
    }
  }
  for (int other = 0; other < wiring_.ranks(); ++other) {
    if (other == rank_ || wiring_.serverOf(other) != wiring_.serverOf(rank_)) continue;
    neighbours_.push_back(other);
  }
  if (!neighbours_.empty()) local_listener_ = listenLocally();
  acceptor_ = quietThread([this] { accept(); });
}

Cables::~Cables() { stop(); }

bool Cables::mine(const Cable& cable) const {
  return wiring_.dialler(cable) == rank_ || wiring_.listener(cable) == rank_;
}

Descriptor Cables::listenAt(const Cable& cable) const {
  Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const sockaddr_in address = addressOf(cable.target_address, cable.tcp_port);
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    throw std::runtime_error("cannot listen at " + cable.target_address + ":" +
                             std::to_string(cable.tcp_port) + ": " + std::strerror(errno));
  }
  return listener;
}

// Returns a verified connection, or none.
Descriptor Cables::dial(int number) const {
  const Cable& cable = wiring_.cables[static_cast<size_t>(number)];
  Descriptor connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in near = addressOf(cable.source_address, 0);
  const sockaddr_in far = addressOf(cable.target_address, cable.tcp_port);
  setLimit(connection.get(), kGreetingLimit);
  if (::bind(connection.get(), reinterpret_cast<const sockaddr*>(&near), sizeof near) != 0 ||
      ::connect(connection.get(), reinterpret_cast<const sockaddr*>(&far), sizeof far) != 0 ||
      !greet(connection.get(), number)) {
    return {};
  }
  prepare(connection.get(), cable.source_unsent_bytes, cable.source_pace_gbps);
  return connection;
}

bool Cables::greet(int fd, int number) const {
  if (!say(fd, wiring_.request_token, number, rank_)) return false;
  const int target = wiring_.listener(wiring_.cables[static_cast<size_t>(number)]);
  return hear(fd, wiring_.answer_token) == std::pair{number, target};
}

// Returns the cable of an accepted connection; -1 if it is not one of this rank's.
int Cables::welcome(int fd) const {
  setLimit(fd, kGreetingLimit);
  const auto [number, source] = hear(fd, wiring_.request_token);
  if (number < 0 || static_cast<size_t>(number) >= wiring_.cables.size()) return -1;
  const Cable& cable = wiring_.cables[static_cast<size_t>(number)];
  if (wiring_.listener(cable) != rank_ || wiring_.dialler(cable) != source) return -1;
  if (!say(fd, wiring_.answer_token, number, rank_)) return -1;
  prepare(fd, cable.target_unsent_bytes, cable.target_pace_gbps);
  return number;
}

void Cables::accept() {
  std::vector<pollfd> wanted{{stop_event_.get(), POLLIN, 0}};
  for (const Descriptor& listener : listeners_) wanted.push_back({listener.get(), POLLIN, 0});
  const int local = local_listener_.get();
  if (local >= 0) wanted.push_back({local, POLLIN, 0});
  while (!stopping_) {
    if (::poll(wanted.data(), wanted.size(), -1) <= 0) continue;
    for (size_t i = 1; i < wanted.size(); ++i) {
      if ((wanted[i].revents & POLLIN) == 0) continue;
      Descriptor connection(::accept4(wanted[i].fd, nullptr, nullptr, SOCK_CLOEXEC));
      if (connection.get() < 0) continue;
      const int cable =
          wanted[i].fd == local ? welcomeLocally(connection.get()) : welcome(connection.get());
      if (cable >= 0) take(cable, std::move(connection));
    }
  }
}

void Cables::take(int cable, Descriptor connection) {
  std::shared_ptr<Endpoint> endpoint;
  {
    const std::lock_guard lock(mutex_);
    endpoint = endpoint_;
    if (!endpoint) connected_[cable] = std::move(connection);
  }
  if (endpoint && static_cast<size_t>(cable) < wiring_.cables.size()) {
    endpoint->replaceCable(cable, handOver(std::move(connection)), keyOf(cable));
  }
}

bool Cables::have(int cable) {
  const std::lock_guard lock(mutex_);
  return connected_.contains(cable);
}

EndpointConfig Cables::connect(std::chrono::milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  for (const int other : neighbours_) await(numberOf(other), deadline);
  for (size_t i = 0; i < wiring_.cables.size(); ++i) {
    if (mine(wiring_.cables[i])) await(static_cast<int>(i), deadline);
  }
  return configuration();
}

void Cables::await(int number, Clock::time_point deadline) {
  const int other = number - static_cast<int>(wiring_.cables.size());
  while (!have(number)) {
    Descriptor connection;
    if (other >= 0) {
      if (other < rank_) connection = dialLocally(other);
    } else if (wiring_.dialler(wiring_.cables[static_cast<size_t>(number)]) == rank_) {
      connection = dial(number);
    }
    if (connection.get() >= 0) {
      take(number, std::move(connection));
      return;
    }
    if (stopping_) throw std::runtime_error("it ends");
    if (Clock::now() > deadline) throw std::runtime_error(nameOf(number) + " has no connection");
    waitFor(stop_event_.get(), kBetweenDials);
  }
}

// ---- ranks of one server: the higher one dials -------------------------------------------------

int Cables::numberOf(int rank) const { return static_cast<int>(wiring_.cables.size()) + rank; }

std::string Cables::nameOf(int number) const {
  const auto index = static_cast<size_t>(number);
  if (index < wiring_.cables.size()) return textOf(number, wiring_.cables[index]);
  return "rank " + std::to_string(index - wiring_.cables.size()) +
         ", which is on this server (ranks of one server need one network namespace and user),";
}

Descriptor Cables::listenLocally() const {
  Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto [address, bytes] = localAddress(wiring_, rank_);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    throw std::runtime_error(
        "cannot listen for the ranks of this server: " + std::string(std::strerror(errno)) +
        "; is rank " + std::to_string(rank_) + " running already?");
  }
  return listener;
}

Descriptor Cables::dialLocally(int other) const {
  Descriptor connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto [address, bytes] = localAddress(wiring_, other);
  setLimit(connection.get(), kGreetingLimit);
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      !isOwnUser(connection.get()) ||
      !say(connection.get(), wiring_.request_token, kLocal, rank_) ||
      hear(connection.get(), wiring_.answer_token) != std::pair{kLocal, other}) {
    return {};
  }
  setLimit(connection.get(), std::chrono::milliseconds(0));
  return connection;
}

int Cables::welcomeLocally(int fd) const {
  setLimit(fd, kGreetingLimit);
  if (!isOwnUser(fd)) return -1;
  const auto [kind, source] = hear(fd, wiring_.request_token);
  const bool near = std::find(neighbours_.begin(), neighbours_.end(), source) != neighbours_.end();
  if (kind != kLocal || !near || source < rank_) return -1;
  if (!say(fd, wiring_.answer_token, kLocal, rank_)) return -1;
  setLimit(fd, std::chrono::milliseconds(0));
  return numberOf(source);
}

// ---- configuration of the endpoint -------------------------------------------------------------

std::string Cables::keyOf(int cable) const {
  return wiring_.cables[static_cast<size_t>(cable)].tls_key;
}

EndpointConfig Cables::configuration() {
  EndpointConfig config;
  config.rank = rank_;
  config.size = wiring_.ranks();
  config.servers = wiring_.servers;
  for (const plan::Route& route : wiring_.routes) {
    const auto& ranks = route.servers;
    if (std::find(ranks.begin(), ranks.end(), rank_) != ranks.end()) config.routes.push_back(route);
  }
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < wiring_.cables.size(); ++i) {
    const Cable& cable = wiring_.cables[i];
    const plan::LinkPorts& link = cable.link;
    const double rate = cable.gbps > 0 ? cable.gbps : 1.0;
    const int dialler = wiring_.dialler(cable), listener = wiring_.listener(cable);
    config.cables.push_back({link, dialler, listener, cable.duplex, rate});
    if (!mine(cable)) continue;
    LinkSpec spec;
    const bool dialled = dialler == rank_;
    const plan::LinkPorts back{link.target, link.target_port, link.source, link.source_port};
    spec.link = dialled || !cable.duplex ? link : back;
    spec.sends = dialled || cable.duplex;
    spec.peer = dialled ? listener : dialler;
    spec.cable = static_cast<int>(i);
    spec.fd = handOver(std::move(connected_[spec.cable]));
    spec.tls_key = cable.tls_key;
    config.links.push_back(spec);
  }
  for (const int other : neighbours_) {
    LinkSpec spec;
    spec.link = {rank_, -1, other, -1};
    spec.peer = other;
    spec.kind = LinkKind::kSharedMemory;
    spec.fd = handOver(std::move(connected_[numberOf(other)]));
    config.links.push_back(spec);
  }
  return config;
}

void Cables::keep(std::shared_ptr<Endpoint> endpoint) {
  std::map<int, Descriptor> late;
  {
    const std::lock_guard lock(mutex_);
    endpoint_ = std::move(endpoint);
    late.swap(connected_);
  }
  for (auto& [cable, connection] : late) {
    if (connection.get() >= 0) take(cable, std::move(connection));
  }
  redialler_ = quietThread([this] { redial(); });
}

void Cables::redial() {
  while (!stopping_) {
    bool missing = false;
    for (const int cable : endpoint_->lostCables()) {
      if (wiring_.dialler(wiring_.cables[static_cast<size_t>(cable)]) != rank_) continue;
      Descriptor connection = dial(cable);
      if (connection.get() >= 0) {
        take(cable, std::move(connection));
      } else {
        missing = true;
      }
    }
    std::array<pollfd, 2> wanted{
        {{stop_event_.get(), POLLIN, 0}, {endpoint_->cablesEvent(), POLLIN, 0}}};
    const int limit = missing ? static_cast<int>(kBetweenDials.count()) : -1;
    if (::poll(wanted.data(), wanted.size(), limit) > 0 && wanted[1].revents != 0) {
      uint64_t count = 0;
      if (::read(wanted[1].fd, &count, sizeof count) < 0) continue;
    }
  }
}

void Cables::stop() {
  stopping_ = true;
  const uint64_t one = 1;
  if (::write(stop_event_.get(), &one, sizeof one) < 0) return;
  if (acceptor_.joinable()) acceptor_.join();
  if (redialler_.joinable()) redialler_.join();
}

}  // namespace topoopt::nccl
