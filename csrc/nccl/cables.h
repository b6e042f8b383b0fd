// The connections of one rank: those of its server's cables, if it has them, dialled and accepted,
// anew when one is lost; and one with every other rank of its server, in shared memory.

#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nccl/wiring.h"
#include "transport/descriptor.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt::nccl {

// The ends of a cable say which job and cable they are, in the clear: it keeps crossed cables and
// other jobs apart, and is no protection from somebody who listens on the cable.
class Cables {
 public:
  // Listens. Throws std::runtime_error if it cannot.
  Cables(Wiring wiring, int rank);
  ~Cables();

  Cables(const Cables&) = delete;
  Cables& operator=(const Cables&) = delete;

  // Blocks until every cable of this rank has a connection; then the configuration of its endpoint.
  // Throws std::runtime_error with the first that has none in time, or when stop() was called.
  EndpointConfig connect(std::chrono::milliseconds limit);
  // From now on lost cables of `endpoint` get new connections.
  void keep(std::shared_ptr<Endpoint> endpoint);
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  EndpointConfig configuration();
  Descriptor listenAt(const Cable& cable) const;
  Descriptor dial(int cable) const;
  bool greet(int fd, int cable) const;
  int welcome(int fd) const;
  void await(int number, Clock::time_point deadline);
  // Connections with ranks of this server, numbered after all cables.
  int numberOf(int rank) const;
  std::string nameOf(int number) const;
  Descriptor listenLocally() const;
  Descriptor dialLocally(int other) const;
  int welcomeLocally(int fd) const;
  void accept();
  void take(int cable, Descriptor connection);
  void redial();
  bool have(int cable);
  bool mine(const Cable& cable) const;
  std::string keyOf(int cable) const;

  const Wiring wiring_;
  const int rank_;
  std::vector<Descriptor> listeners_;
  Descriptor local_listener_;
  std::vector<int> neighbours_;  // the other ranks of this server
  Descriptor stop_event_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::map<int, Descriptor> connected_;  // until the endpoint has them
  std::shared_ptr<Endpoint> endpoint_;
  std::thread acceptor_;
  std::thread redialler_;
};

}  // namespace topoopt::nccl
