#include "support/network.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>

#include "common/errors.h"
#include "transport/tls/session.h"

namespace topoopt {
namespace {

using Adjacency = std::map<int, std::vector<int>>;
using Path = std::vector<int>;

void extendPaths(const Adjacency& adjacent, int target, Path& path, std::vector<Path>& found) {
  if (path.back() == target) {
    found.push_back(path);
    return;
  }
  for (const int next : adjacent.at(path.back())) {
    if (std::find(path.begin(), path.end(), next) != path.end()) continue;
    path.push_back(next);
    extendPaths(adjacent, target, path, found);
    path.pop_back();
  }
}

// All paths of small networks, the shortest first; those of a length in random order.
std::vector<Path> shortestPaths(const Adjacency& adjacent, int source, int target,
                                TestRandom& random) {
  std::vector<Path> found;
  Path path{source};
  extendPaths(adjacent, target, path, found);
  std::shuffle(found.begin(), found.end(), random.engine());
  std::stable_sort(found.begin(), found.end(),
                   [](const Path& a, const Path& b) { return a.size() < b.size(); });
  return found;
}

std::vector<plan::Route> routesOf(const NetworkOptions& options, TestRandom& random) {
  Adjacency adjacent;
  for (int rank = 0; rank < options.size; ++rank) adjacent[rank];
  for (const Cable& cable : options.cables) {
    adjacent[cable.a].push_back(cable.b);
    if (cable.duplex) adjacent[cable.b].push_back(cable.a);
  }
  std::vector<plan::Route> routes;
  for (int source = 0; source < options.size; ++source) {
    for (int target = 0; target < options.size; ++target) {
      if (source == target) continue;
      auto paths = shortestPaths(adjacent, source, target, random);
      paths.resize(std::min(paths.size(), options.routes));
      const bool only_link = paths.size() == 1 && paths[0].size() == 2;
      if (only_link) continue;
      for (Path& path : paths) {
        routes.push_back({std::move(path), static_cast<double>(random.between(1, 4)) / 4});
      }
    }
  }
  return routes;
}

std::runtime_error refused(const char* what) {
  return std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

void passNothing(int fd) {
  sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &nothing};
  if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0) {
    throw refused("SO_ATTACH_FILTER");
  }
}

}  // namespace

std::pair<int, int> connectedPair(uint32_t own_address) {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(own_address);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), any, size) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), any, &size) != 0) {
    throw refused("listening");
  }
  const int near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(near, any, size) != 0) throw refused("connect");
  const int far = accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
  if (far < 0) throw refused("accept");
  const int one = 1;
  for (const int fd : {near, far}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return {near, far};
}

bool kernelCountsConnections() {
  const auto [near, far] = connectedPair();
  const Descriptor ends[]{Descriptor(near), Descriptor(far)};
  tcp_info info{};
  socklen_t size = sizeof info;
  return getsockopt(near, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         size > offsetof(tcp_info, tcpi_total_retrans);
}

bool kernelSendsWithoutCopy() {
  const Descriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  return setsockopt(probe.get(), SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0;
}

std::pair<int, int> fastPair() {
  const auto ends = connectedPair();
  const int unsent_bytes = 2 << 20;
  for (const int fd : {ends.first, ends.second}) {
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof unsent_bytes);
  }
  return ends;
}

// libstdc++ counts the owners of an exception with atomics, but is not built with this sanitizer,
// which then takes what the last owner deletes for a race with what an earlier one read.
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}

std::string describe(std::exception_ptr error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const PeerLostError& e) {
    return std::string("PeerLostError: ") + e.what();
  } catch (const MismatchError& e) {
    return std::string("MismatchError: ") + e.what();
  } catch (const TimeoutError& e) {
    return std::string("TimeoutError: ") + e.what();
  } catch (const AbortedError& e) {
    return std::string("AbortedError: ") + e.what();
  }
}

Done Outcome::done() {
  return [state = state_](std::exception_ptr error) { state->promise.set_value(error); };
}

std::string Outcome::wait(const std::string& what) {
  if (future_.wait_for(kWaitLimit) == std::future_status::ready) return describe(future_.get());
  ADD_FAILURE() << "still pending after the limit: " << what;
  return "pending";
}

const char* nameOf(Moved moved) {
  constexpr const char* kNames[] = {"plain", "encrypted", "threads", "zero_copy",
                                    "threads_zero_copy"};
  return kNames[static_cast<size_t>(moved)];
}

std::vector<Cable> ringOf(int size) {
  std::vector<Cable> cables;
  for (int rank = 0; rank < size; ++rank) cables.push_back({rank, (rank + 1) % size});
  return cables;
}

std::vector<Cable> simplexRingOf(int size) {
  std::vector<Cable> cables = ringOf(size);
  for (Cable& cable : cables) cable.duplex = false;
  return cables;
}

std::vector<Cable> lineOf(int size) {
  std::vector<Cable> cables = ringOf(size);
  cables.pop_back();
  return cables;
}

std::vector<Cable> starOf(int size) {
  std::vector<Cable> cables;
  for (int rank = 1; rank < size; ++rank) cables.push_back({0, rank});
  return cables;
}

std::vector<Cable> completeOf(int size) {
  std::vector<Cable> cables;
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) cables.push_back({a, b});
  }
  return cables;
}

std::vector<Cable> ofRandomKinds(std::vector<Cable> cables, TestRandom& random) {
  for (Cable& cable : cables) {
    const bool shared = cable.duplex && random.chance(0.5);
    cable.kind = shared ? LinkKind::kSharedMemory : LinkKind::kSocket;
  }
  return cables;
}

std::vector<Shape> shapes() {
  return {{"ring of 4", ringOf(4), 4},
          {"ring of 7", ringOf(7), 7},
          {"simplex ring of 5", simplexRingOf(5), 5},
          {"line of 5", lineOf(5), 5},
          {"star of 6", starOf(6), 6},
          {"complete 5", completeOf(5), 5}};
}

Network::Network(const NetworkOptions& options, TestRandom& random)
    : routes_(routesOf(options, random)),
      cables_(options.cables),
      encrypted_(options.moved == Moved::kEncrypted),
      fast_(byThreads(options.moved) || withoutCopy(options.moved)) {
  std::vector<CableEnds> ends;
  std::vector<EndpointConfig> configs(static_cast<size_t>(options.size));
  std::vector<int> next_port(configs.size(), 0);
  for (const Cable& cable : options.cables) {
    const plan::LinkPorts there{cable.a, next_port[cable.a]++, cable.b, next_port[cable.b]++};
    const plan::LinkPorts back{there.target, there.target_port, there.source, there.source_port};
    LinkSpec near{.link = there, .sends = true, .kind = cable.kind};
    LinkSpec far{.link = cable.duplex ? back : there, .sends = cable.duplex, .kind = cable.kind};
    if (options.recovers) {
      near.cable = far.cable = static_cast<int>(ends.size());
      ends.push_back({there, cable.a, cable.b, cable.duplex});
    }
    if (cable.kind == LinkKind::kSocket) near.tls_key = far.tls_key = nextKey();
    paths_.push_back(lay(cable, options, near, far));
    configs[cable.a].links.push_back(std::move(near));
    configs[cable.b].links.push_back(std::move(far));
  }
  for (int rank = 0; rank < options.size; ++rank) {
    EndpointConfig& config = configs[rank];
    config.rank = rank;
    config.size = options.size;
    config.routes = routes_;
    config.window_bytes = options.window_bytes;
    config.cables = ends;
    config.silence_limit = options.silence_limit;
    config.cable_tick = options.cable_tick;
    config.workers = options.workers;
    endpoints_.push_back(std::make_shared<Endpoint>(std::move(config)));
  }
}

std::string Network::nextKey() {
  return encrypted_ ? std::string(TlsSession::kKeyBytes, ++keys_) : "";
}

Network::Path Network::lay(const Cable& cable, const NetworkOptions& options, LinkSpec& near,
                           LinkSpec& far) {
  near.threads = far.threads = byThreads(options.moved);
  // On loopback the kernel copies all the same.
  if (withoutCopy(options.moved)) near.zero_copy = far.zero_copy = ZeroCopy::kAlways;
  if (fast_ && !options.recovers && cable.kind == LinkKind::kSocket) {
    std::tie(near.fd, far.fd) = fastPair();
    return {far.fd, {}, {}};
  }
  if (options.recovers) {
    std::tie(near.fd, far.fd) = fast_ ? fastPair() : connectedPair();
    return {far.fd, Descriptor(dup(near.fd)), Descriptor(dup(far.fd))};
  }
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    throw std::runtime_error("socketpair");
  }
  for (const int fd : fds) {
    if (options.socket_bytes == 0) continue;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &options.socket_bytes, sizeof options.socket_bytes);
  }
  near.fd = fds[0];
  far.fd = fds[1];
  return {fds[1], {}, {}};
}

Network::~Network() {
  for (const auto& endpoint : endpoints_) endpoint->stop();
}

void Network::on(int rank, const std::function<void(Endpoint&)>& function) {
  at(rank)->reactor().run([&] { function(*at(rank)); });
}

void Network::cut(size_t cable) { shutdown(paths_[cable].far_fd, SHUT_RDWR); }

void Network::hurt(size_t cable, Fault fault) {
  const Path& path = paths_[cable];
  const char garbage[100] = "GET / HTTP/1.1\r\n\r\n";
  switch (fault) {
    case Fault::kClosed:
      shutdown(path.far.get(), SHUT_RDWR);
      break;
    case Fault::kHalf:
      shutdown(path.near.get(), SHUT_WR);
      break;
    case Fault::kSilent:
      passNothing(path.near.get());
      passNothing(path.far.get());
      break;
    case Fault::kOneWay:
      passNothing(path.far.get());
      break;
    case Fault::kOtherWay:
      passNothing(path.near.get());
      break;
    case Fault::kCorrupted:
      [[maybe_unused]] const ssize_t sent =
          ::send(path.far.get(), garbage, sizeof garbage, MSG_NOSIGNAL | MSG_DONTWAIT);
      break;
  }
}

bool Network::lost(size_t cable) {
  const auto misses = [&](int rank) {
    const std::vector<int> lost = at(rank)->lostCables();
    return std::find(lost.begin(), lost.end(), static_cast<int>(cable)) != lost.end();
  };
  return misses(cables_[cable].a) && misses(cables_[cable].b);
}

bool Network::up(size_t cable) {
  const auto uses = [&](int rank) {
    for (const LinkTraffic& link : at(rank)->traffic()) {
      if (link.cable == static_cast<int>(cable)) return link.up;
    }
    return false;
  };
  if (!uses(cables_[cable].a) || !uses(cables_[cable].b)) return false;
  return std::ranges::all_of(endpoints_, [&](const auto& endpoint) {
    bool known = false;
    endpoint->reactor().run([&] { known = endpoint->cables()->up(static_cast<int>(cable)); });
    return known;
  });
}

void Network::replace(size_t cable) {
  const auto [near, far] = fast_ ? fastPair() : connectedPair();
  paths_[cable].near.reset(dup(near));
  paths_[cable].far.reset(dup(far));
  const std::string key = nextKey();
  at(cables_[cable].a)->replaceCable(static_cast<int>(cable), near, key);
  at(cables_[cable].b)->replaceCable(static_cast<int>(cable), far, key);
}

void Network::move(size_t cable, int first) {
  const int dials = cables_[cable].a;
  ASSERT_TRUE(at(dials)->beginMove(static_cast<int>(cable)));
  Path old{.near = std::move(paths_[cable].near), .far = std::move(paths_[cable].far)};
  const auto [near, far] = fast_ ? fastPair() : connectedPair();
  paths_[cable].near.reset(dup(near));
  paths_[cable].far.reset(dup(far));
  const std::string key = nextKey();
  const auto hand = [&](int rank) {
    at(rank)->replaceCable(static_cast<int>(cable), rank == dials ? near : far, key);
  };
  hand(first);
  hand(cables_[cable].a + cables_[cable].b - first);
  eventually("the old connection ends", [&] {
    pollfd near_end{old.near.get(), POLLIN, 0};
    return poll(&near_end, 1, 0) == 1 && (near_end.revents & POLLHUP) != 0;
  });
  eventually("the cable has moved", [&] { return up(cable); });
}

void Network::write(size_t cable, const void* data, size_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    pollfd writable{paths_[cable].far_fd, POLLOUT, 0};
    ASSERT_EQ(poll(&writable, 1, static_cast<int>(kWaitLimit.count())), 1);
    const ssize_t sent = ::send(paths_[cable].far_fd, next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EPIPE) return;  // the first end has closed it
    ASSERT_GT(sent, 0);
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

std::vector<std::string> Network::leaveAll(std::chrono::milliseconds limit) {
  std::vector<std::string> results(endpoints_.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < endpoints_.size(); ++rank) {
    threads.emplace_back([&, rank] { results[rank] = endpoints_[rank]->leave(limit); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

Channel::Channel(Network& network, uint32_t number)
    : number_(number), outcomes_(static_cast<size_t>(network.size())) {
  for (int rank = 0; rank < network.size(); ++rank) {
    network.on(rank, [&](Endpoint& endpoint) {
      // As a group does: a channel that has failed is closed.
      endpoint.openChannel(number, {[&endpoint, number, done = outcomes_[rank].done()](auto error) {
                             endpoint.failChannel(number, "", false);
                             done(error);
                           }});
    });
  }
}

std::string Channel::failure(int rank) {
  return outcomes_[rank].wait("the failure of channel " + std::to_string(number_) + " on rank " +
                              std::to_string(rank));
}

}  // namespace topoopt
