// The connections of one rank: its server's cables, if it owns them, dialled or accepted and
// replaced after a loss; and shared memory with each other rank of its server.

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

// The ends of a cable exchange job and cable in the clear. That detects crossed cables and other
// jobs, but does not protect against eavesdroppers.
class Cables {
 public:
  // Listens. Throws std::runtime_error on failure.
  Cables(Wiring wiring, int rank);
  ~Cables();

  Cables(const Cables&) = delete;
  Cables& operator=(const Cables&) = delete;

  const Wiring& wiring() const { return wiring_; }

  // Blocks until every cable of this rank is connected; returns the endpoint's configuration.
  // Throws std::runtime_error for the first missing one, or after stop().
  EndpointConfig connect(std::chrono::milliseconds limit);
  // Starts replacing lost cables of `endpoint`.
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
  // Index of the connection with a rank of this server, after all cables.
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
  std::vector<int> neighbours_;  // other ranks of this server
  Descriptor stop_event_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::map<int, Descriptor> connected_;  // until the endpoint owns them
  std::shared_ptr<Endpoint> endpoint_;
  std::thread acceptor_;
  std::thread redialler_;
};

}  // namespace topoopt::nccl
