// Packets that choose their links: the tables of a mesh, its dependencies, and lossless runs on it.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "sim/core/task_runner.h"
#include "sim/packet/adaptive_routing.h"
#include "sim/packet/packet_network.h"
#include "support/seed.h"

namespace topoopt::packet {
namespace {

constexpr double kRate = 100e9;
constexpr double kLatencyNs = 100;

// A mesh of rows x columns with links in both directions; `last` are those to the north.
struct Mesh {
  Mesh(int rows, int columns) : rows(rows), columns(columns) {
    for (int node = 0; node < rows * columns; ++node) {
      if (node % columns + 1 < columns) both(node, node + 1);
      if (node / columns + 1 < rows) both(node, node + columns);
    }
    for (size_t i = 0; i < links.size(); ++i) {
      if (links[i].target == links[i].source - columns) last.push_back(static_cast<int>(i));
    }
  }
  void both(int a, int b) {
    links.push_back({a, b});
    links.push_back({b, a});
  }
  int nodes() const { return rows * columns; }
  int distance(int a, int b) const {
    return std::abs(a / columns - b / columns) + std::abs(a % columns - b % columns);
  }
  std::shared_ptr<AdaptiveRouting> routing(const ChannelRule& rule) const {
    return std::make_shared<AdaptiveRouting>(nodes(), links, rule);
  }
  std::vector<int> everyone() const {
    std::vector<int> all(nodes());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  int rows, columns;
  std::vector<LinkEnds> links;
  std::vector<int> last;
};

// Whether nodes 0..count-1 with these edges have a cycle: all that nothing leads to is taken away.
bool hasCycle(uint32_t count, const std::vector<std::pair<uint32_t, uint32_t>>& edges) {
  std::vector<int> into(count, 0);
  std::vector<std::vector<uint32_t>> out(count);
  for (const auto& [a, b] : edges) {
    ++into[b];
    out[a].push_back(b);
  }
  std::vector<uint32_t> free;
  for (uint32_t node = 0; node < count; ++node) {
    if (into[node] == 0) free.push_back(node);
  }
  for (size_t i = 0; i < free.size(); ++i) {
    for (uint32_t next : out[free[i]]) {
      if (--into[next] == 0) free.push_back(next);
    }
  }
  return free.size() < count;
}

bool canDeadlock(const Mesh& mesh, const ChannelRule& rule) {
  const auto routing = mesh.routing(rule);
  const auto edges = routing->dependencies(mesh.everyone());
  const std::set<std::pair<uint32_t, uint32_t>> unique(edges.begin(), edges.end());
  EXPECT_EQ(unique.size(), edges.size());
  return hasCycle(static_cast<uint32_t>(mesh.links.size()) * rule.channels, edges);
}

TEST(AdaptiveRouting, AllShortestPathsOfAMeshAreAllowedWithoutARule) {
  const Mesh mesh(3, 4);
  const auto routing = mesh.routing({});
  for (int target = 0; target < mesh.nodes(); ++target) {
    routing->prepare(target, mesh.everyone());
    for (int node = 0; node < mesh.nodes(); ++node) {
      ASSERT_EQ(routing->hops(target)[node], mesh.distance(node, target));
      std::set<int> nearer;
      for (uint32_t link : routing->candidates(node, target)) nearer.insert(static_cast<int>(link));
      for (size_t i = 0; i < mesh.links.size(); ++i) {
        const auto [source, end] = mesh.links[i];
        if (source != node) continue;
        ASSERT_EQ(nearer.contains(static_cast<int>(i)),
                  mesh.distance(end, target) < mesh.distance(node, target));
      }
    }
  }
}

TEST(AdaptiveRouting, NorthLastStaysShortestAndBreaksEveryCycle) {
  for (const auto& [rows, columns] : {std::pair{3, 4}, {2, 2}, {5, 3}, {1, 4}}) {
    const Mesh mesh(rows, columns);
    const ChannelRule rule{1, {}, mesh.last, {}};
    EXPECT_FALSE(canDeadlock(mesh, rule));
    EXPECT_EQ(canDeadlock(mesh, {}), rows > 1 && columns > 1);
    const auto routing = mesh.routing(rule);
    for (int source = 0; source < mesh.nodes(); ++source) {
      for (int target = 0; target < mesh.nodes(); ++target) {
        const std::vector<int> path = routing->path(source, target);
        ASSERT_EQ(static_cast<int>(path.size()), mesh.distance(source, target));
        const auto north = [&](int link) {
          return std::ranges::find(mesh.last, link) != mesh.last.end();
        };
        ASSERT_TRUE(std::ranges::is_partitioned(path, [&](int link) { return !north(link); }));
      }
    }
  }
}

TEST(AdaptiveRouting, AChannelMoreAtEveryHopBreaksEveryCycle) {
  const Mesh mesh(3, 3);
  ChannelRule rule{5, std::vector<int>(mesh.links.size()), {}, {}};
  std::iota(rule.raises.begin(), rule.raises.end(), 0);
  EXPECT_FALSE(canDeadlock(mesh, rule));
  rule.channels = 4;
  EXPECT_THROW(mesh.routing(rule)->dependencies(mesh.everyone()), std::invalid_argument);
}

FlowProgram programOf(const Mesh& mesh, AdaptiveRouting& routing, uint64_t seed, int flows) {
  TestRandom random(seed);
  FlowProgram program(mesh.nodes(), mesh.nodes());
  const auto where = [] { return std::string("test"); };
  int64_t id = 0;
  for (const LinkEnds& link : mesh.links) {
    program.addLink({id++, link.source, link.target, kRate, kLatencyNs}, where);
  }
  for (int flow = 0; flow < flows; ++flow) {
    const int source = static_cast<int>(random.between(0, mesh.nodes() - 1));
    const int step = static_cast<int>(random.between(1, mesh.nodes() - 1));
    const int target = (source + step) % mesh.nodes();
    const auto size = static_cast<double>(random.between(1, 60'000));
    program.addFlow({flow, source, target, size}, routing.path(source, target), where);
    if (flow >= 4 && random.chance(0.3)) program.addDependency(flow - 4, flow);
  }
  return program;
}

Outcome run(const FlowProgram& program, PacketNetwork& network) {
  TaskRunner runner(program.hosts());
  return runner.run(program.graph(), network, RunOptions{});
}

TEST(AdaptivePackets, EveryByteArrivesOverAShortestPathHoweverSmallTheBuffers) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const Mesh mesh(3 + static_cast<int>(seed % 2), 4);
    const auto routing = mesh.routing({1, {}, mesh.last, {}});
    const FlowProgram program = programOf(mesh, *routing, seed, 400);
    PacketOptions options;
    options.payload_bytes = 1000;
    options.header_bytes = 24;
    options.path_choice = PathChoice::kAdaptive;
    options.lossless = seed > 0;
    options.pause_above_bytes = 3000;
    options.resume_below_bytes = 1500;
    options.seed = seed;
    PacketNetwork network(program, options, routing);
    const Outcome first = run(program, network);
    ASSERT_TRUE(first.complete);
    ASSERT_EQ(network.dropped(), 0);
    ASSERT_TRUE(network.drained());
    double expected = 0;
    for (const Task& task : program.graph().tasks()) {
      expected += std::ceil(task.amount) *
                  mesh.distance(network.sourceOf(task.resource), network.targetOf(task.resource));
    }
    ASSERT_DOUBLE_EQ(std::accumulate(first.link_bytes.begin(), first.link_bytes.end(), 0.0),
                     expected);
    const Outcome second = run(program, network);  // on the same network, set back
    ASSERT_EQ(first.finish_s, second.finish_s);
    ASSERT_EQ(first.link_bytes, second.link_bytes);
  }
}

TEST(AdaptivePackets, AllTurnsEndInADeadlockThatIsFound) {
  const Mesh mesh(4, 4);
  const auto routing = mesh.routing({});
  const FlowProgram program = programOf(mesh, *routing, 3, 4000);
  PacketOptions options;
  options.path_choice = PathChoice::kAdaptive;
  options.lossless = true;
  options.pause_above_bytes = 9000;
  options.resume_below_bytes = 0;
  PacketNetwork network(program, options, routing);
  EXPECT_THROW(run(program, network), std::invalid_argument);
}

}  // namespace
}  // namespace topoopt::packet
