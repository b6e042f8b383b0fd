#include "sim/packet/transport.h"

#include <stdexcept>

namespace topoopt::packet {

namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Transport> (*make)(PacketNetwork&, const PacketOptions&);
};

#define TOPOOPT_ENTRY(name, make) {name, make},
constexpr Entry kTransports[] = {TOPOOPT_TRANSPORTS(TOPOOPT_ENTRY)};
#undef TOPOOPT_ENTRY

}  // namespace

std::vector<std::string> transports() {
  std::vector<std::string> names;
  for (const Entry& entry : kTransports) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Transport> makeTransport(PacketNetwork& network, const PacketOptions& options) {
  std::string names;
  for (const Entry& entry : kTransports) {
    if (options.transport == entry.name) return entry.make(network, options);
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw std::invalid_argument("transport: '" + options.transport + "' is not one of " + names);
}

}  // namespace topoopt::packet
