// Reports at once when a network interface goes down or loses its carrier.

#pragma once

#include <functional>

#include "transport/descriptor.h"
#include "transport/reactor.h"

namespace topoopt {

class CarrierWatch final : public Reactor::Handler {
 public:
  // Reactor thread, also for `lost`, which gets the index of an interface, possibly repeatedly.
  // Without support by the kernel it is never called.
  CarrierWatch(Reactor& reactor, std::function<void(int)> lost);
  ~CarrierWatch() override;

  void onReady(uint32_t events) override;

 private:
  Reactor& reactor_;
  const std::function<void(int)> lost_;
  Descriptor socket_;
};

// Returns the index of the interface with the local address of a connected socket; 0 if unknown or
// loopback.
int interfaceOf(int socket);

}  // namespace topoopt
