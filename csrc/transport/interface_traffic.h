// The traffic counters of a network interface, over all of its users.

#pragma once

#include <cstdint>
#include <optional>

#include "transport/descriptor.h"

namespace topoopt {

struct InterfaceTraffic {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
};

class InterfaceReader {
 public:
  // Reads the network namespace of the first calling thread. nullopt for index 0, a missing
  // interface, or without support by the kernel.
  std::optional<InterfaceTraffic> read(int index);

 private:
  Descriptor socket_;
};

}  // namespace topoopt
