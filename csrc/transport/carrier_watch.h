// Notices at once that a network interface goes down or loses its carrier: the kernel reports it.

#pragma once

#include <functional>

#include "transport/descriptor.h"
#include "transport/reactor.h"

namespace topoopt {

class CarrierWatch final : public Reactor::Handler {
 public:
  // On the reactor thread, as is `lost`, which is called with the index of an interface, perhaps
  // repeatedly. Where the kernel reports nothing, it is never called.
  CarrierWatch(Reactor& reactor, std::function<void(int)> lost);
  ~CarrierWatch() override;

  void onReady(uint32_t events) override;

 private:
  Reactor& reactor_;
  const std::function<void(int)> lost_;
  Descriptor socket_;
};

// The index of the interface that has the local address of a connected socket; 0 if that is not
// known, or is the loopback interface.
int interfaceOf(int socket);

}  // namespace topoopt
