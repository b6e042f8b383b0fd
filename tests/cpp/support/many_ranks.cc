#include "support/many_ranks.h"

#include <sys/socket.h>

#include <numeric>
#include <set>
#include <utility>

#include "common/errors.h"

namespace topoopt {
namespace {

// Of each offset, by a search in order of length.
std::vector<std::vector<int>> shortestWays(int size, const std::vector<int>& strides) {
  std::vector<std::vector<int>> ways(static_cast<size_t>(size));
  std::vector<int> order{0};
  for (size_t i = 0; i < order.size(); ++i) {
    for (const int stride : strides) {
      for (const int step : {stride, size - stride}) {
        const int next = (order[i] + step) % size;
        if (next == 0 || !ways[next].empty()) continue;
        ways[next] = ways[order[i]];
        ways[next].push_back(step);
        order.push_back(next);
      }
    }
  }
  return ways;
}

}  // namespace

ManyRanks::ManyRanks(const ManyRanksOptions& options)
    : size_(options.size), ways_(shortestWays(options.size, options.strides)) {
  std::vector<int> offsets = options.offsets;
  if (offsets.empty()) {
    offsets.resize(static_cast<size_t>(size_ - 1));
    std::iota(offsets.begin(), offsets.end(), 1);
  }
  std::vector<EndpointConfig> configs(static_cast<size_t>(size_), options.endpoint);
  std::vector<int> next_port(configs.size(), 0);
  for (const int stride : options.strides) {
    for (int rank = 0; rank < size_; ++rank) {
      const int other = (rank + stride) % size_;
      int fds[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) throwErrno("socketpair");
      const plan::LinkPorts there{rank, next_port[rank]++, other, next_port[other]++};
      const plan::LinkPorts back{other, there.target_port, rank, there.source_port};
      configs[rank].links.push_back({.link = there, .fd = fds[0]});
      configs[other].links.push_back({.link = back, .fd = fds[1]});
    }
  }
  for (int rank = 0; rank < size_; ++rank) {
    configs[rank].rank = rank;
    configs[rank].size = size_;
    configs[rank].silence_limit = kWaitLimit;  // many ranks share few processors
    configs[rank].routes = routesThrough(rank, offsets);
    endpoints_.push_back(std::make_shared<Endpoint>(std::move(configs[rank])));
  }
}

ManyRanks::~ManyRanks() {
  for (const auto& endpoint : endpoints_) endpoint->stop();
}

// As torch_topoopt.links.rank_layout.rank_routes finds them: backwards from the rank.
std::vector<plan::Route> ManyRanks::routesThrough(int rank, const std::vector<int>& offsets) const {
  std::vector<plan::Route> routes;
  for (const int offset : offsets) {
    if (ways_[offset].size() < 2) continue;  // a link
    int passed = 0;
    for (size_t i = 0; i <= ways_[offset].size(); ++i) {
      plan::Route& route = routes.emplace_back();
      route.servers.push_back((rank + size_ - passed % size_) % size_);
      for (const int stride : ways_[offset]) {
        route.servers.push_back((route.servers.back() + stride) % size_);
      }
      if (i < ways_[offset].size()) passed += ways_[offset][i];
    }
  }
  return routes;
}

std::vector<std::shared_ptr<Group>> ManyRanks::openGroup(uint32_t channel,
                                                         const std::string& algorithm) const {
  std::vector<plan::StrideRoute> rules;
  for (const auto& way : ways_) {
    if (!way.empty()) rules.push_back({way, 1.0});
  }
  const auto hops = std::make_shared<const HopTable>(HopTable::ofRoutes(size_, {}, rules, {}, {}));
  std::vector<int> ranks(static_cast<size_t>(size_));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::shared_ptr<Group>> members;
  for (int rank = 0; rank < size_; ++rank) {
    GroupConfig config;
    config.name = "of all";
    config.channel = channel;
    config.rank = rank;
    config.ranks = ranks;
    config.rings = {{ranks, 1.0}};
    config.hops = hops;
    config.algorithm = algorithm;
    members.push_back(Group::open(endpoints_[rank], std::move(config)));
  }
  return members;
}

std::vector<std::string> ManyRanks::onAll(
    const std::vector<std::shared_ptr<Group>>& members,
    const std::function<void(Group&, int member, Done done)>& start) {
  std::vector<Outcome> outcomes(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    start(*members[i], static_cast<int>(i), outcomes[i].done());
  }
  std::vector<std::string> errors;
  for (size_t i = 0; i < members.size(); ++i) {
    errors.push_back(outcomes[i].wait("member " + std::to_string(i)));
  }
  return errors;
}

}  // namespace topoopt
