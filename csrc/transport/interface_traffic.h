// What a network interface has sent and received, of whoever uses it.

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
  // Of the network namespace of the thread that reads first. nullopt for index 0, for an interface
  // that does not exist, and where the kernel does not say.
  std::optional<InterfaceTraffic> read(int index);

 private:
  Descriptor socket_;
};

}  // namespace topoopt
