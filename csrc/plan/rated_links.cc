#include "plan/rated_links.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace topoopt {

void checkLinks(int servers, const std::vector<RatedLink>& links) {
  const auto known = [servers](int server) { return server >= 0 && server < servers; };
  const auto refuse = [](const RatedLink& link, const std::string& why) {
    throw std::invalid_argument("links: " + std::to_string(link.source) + " to " +
                                std::to_string(link.target) + why);
  };
  for (const RatedLink& link : links) {
    if (!known(link.source) || !known(link.target) || link.source == link.target) {
      refuse(link, " does not join two of the servers 0.." + std::to_string(servers - 1));
    }
    if (!(link.rate > 0) || !std::isfinite(link.rate)) {
      refuse(link, ": rate " + std::to_string(link.rate) + " is not positive and finite");
    }
  }
}

}  // namespace topoopt
