#include "transport/near_processors.h"

#include <net/if.h>

#include <fstream>
#include <sstream>

namespace topoopt {
namespace {

std::string firstLine(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

}  // namespace

std::optional<cpu_set_t> processorsOf(const std::string& list) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream text(part);
    int first = -1;
    char dash = 0;
    if (!(text >> first)) return std::nullopt;
    int last = first;
    if (text >> dash && (dash != '-' || !(text >> last) || text >> dash)) return std::nullopt;
    if (first < 0 || last < first || last >= CPU_SETSIZE) return std::nullopt;
    for (int processor = first; processor <= last; ++processor) {
      CPU_SET(static_cast<size_t>(processor), &processors);
    }
  }
  if (CPU_COUNT(&processors) == 0) return std::nullopt;
  return processors;
}

std::optional<cpu_set_t> processorsNear(int interface, const std::filesystem::path& system) {
  char name[IF_NAMESIZE];
  if (interface <= 0 || if_indextoname(static_cast<unsigned>(interface), name) == nullptr) {
    return std::nullopt;
  }
  const std::filesystem::path device = system / "class" / "net" / name / "device";
  // A virtual machine without this information reports -1 and all or no processors.
  const std::string node = firstLine(device / "numa_node");
  if (node.empty() || node[0] == '-') return std::nullopt;
  return processorsOf(firstLine(device / "local_cpulist"));
}

void stayOn(const cpu_set_t& processors) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  CPU_AND(&allowed, &allowed, &processors);
  if (CPU_COUNT(&allowed) > 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace topoopt
