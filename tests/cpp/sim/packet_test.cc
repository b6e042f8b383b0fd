// The packet level: its parts against plain ones, and invariants of whole runs.

#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <map>
#include <set>

#include "sim/core/reconfigurer.h"
#include "sim/core/task_runner.h"
#include "sim/packet/delay_lines.h"
#include "sim/packet/packet_network.h"
#include "sim/packet/received.h"
#include "support/seed.h"

namespace topoopt::packet {
namespace {

constexpr double kRate = 100e9;
constexpr double kLatencyNs = 1000;

// `hosts` in a ring of links in both directions: link i from i to i + 1, hosts + i back.
FlowProgram ringProgram(int hosts) {
  FlowProgram program(hosts, hosts);
  const auto where = [] { return std::string("link"); };
  for (int i = 0; i < hosts; ++i) {
    program.addLink({i, i, (i + 1) % hosts, kRate, kLatencyNs}, where);
  }
  for (int i = 0; i < hosts; ++i) {
    program.addLink({hosts + i, (i + 1) % hosts, i, kRate, kLatencyNs}, where);
  }
  return program;
}

// A flow clockwise over `hops` links.
int addFlow(FlowProgram& program, int source, int hops, double size_bytes) {
  const int hosts = program.hosts();
  std::vector<int> path;
  for (int i = 0; i < hops; ++i) path.push_back((source + i) % hosts);
  return program.addFlow({program.flowCount(), source, (source + hops) % hosts, size_bytes}, path,
                         [] { return std::string("flow"); });
}

Outcome run(const FlowProgram& program, PacketNetwork& network) {
  TaskRunner runner(program.hosts());
  RunOptions options;
  options.changes = program.changes();
  return runner.run(program.graph(), network, options);
}

PacketOptions optionsOf(const std::string& transport) {
  PacketOptions options;
  options.transport = transport;
  options.dctcp.handshake = false;
  options.dctcp.initial_window_packets = 100;  // more than fills any path here
  options.retransmission_timeout_s = 1e-3;
  return options;
}

const std::vector<std::string> kAll = transports();

TEST(RingBuffer, KeepsTheOrder) {
  TestRandom random(1);
  RingBuffer<int> ring;
  std::deque<int> plain;
  for (int i = 0; i < 20000; ++i) {
    if (random.chance(i < 10000 ? 0.7 : 0.3)) {
      ring.push(i);
      plain.push_back(i);
    } else if (!plain.empty()) {
      ASSERT_EQ(ring.front(), plain.front());
      ASSERT_EQ(ring.pop(), plain.front());
      plain.pop_front();
    }
    ASSERT_EQ(ring.size(), plain.size());
    if (!plain.empty()) {
      ASSERT_EQ(ring[ring.size() / 2], plain[plain.size() / 2]);
    }
  }
}

TEST(EventHeap, ComesOutByTimeThenSource) {
  TestRandom random(2);
  EventHeap heap;
  std::set<std::pair<Picoseconds, uint32_t>> plain;
  for (uint32_t source = 0; source < 3000; ++source) {
    const auto time = static_cast<Picoseconds>(random.between(0, 500));
    heap.push(time, source);
    plain.emplace(time, source);
    if (random.chance(0.3)) {
      ASSERT_EQ(std::pair(heap.topTime(), heap.topSource()), *plain.begin());
      const auto [top, who] = *plain.begin();
      plain.erase(plain.begin());
      if (random.chance(0.5)) {
        heap.replaceTop(top + 100);
        plain.emplace(top + 100, who);
      } else {
        heap.pop();
      }
    }
  }
  for (const auto& [time, source] : plain) {
    ASSERT_EQ(heap.topTime(), time);
    ASSERT_EQ(heap.topSource(), source);
    heap.pop();
  }
  EXPECT_EQ(heap.topTime(), kNever);
}

TEST(DelayLines, PacketsLeaveAfterTheirDelay) {
  TestRandom random(3);
  DelayLines lines;
  std::multiset<Picoseconds> due;
  Picoseconds now = 0;
  for (int i = 0; i < 2000; ++i) {
    now += static_cast<Picoseconds>(random.between(0, 20));
    while (lines.topTime() <= now) {
      ASSERT_EQ(lines.topTime(), *due.begin());
      due.erase(due.begin());
      lines.pop();
    }
    const auto delay = static_cast<Picoseconds>(100 * random.between(0, 5));
    lines.push(lines.lineOf(delay), now, Packet{});
    due.insert(now + delay);
  }
}

TEST(Received, IsASetOfNumbers) {
  TestRandom random(4);
  Received received;
  std::set<uint32_t> plain;
  for (int i = 0; i < 5000; ++i) {
    const uint32_t seq = received.expected() + static_cast<uint32_t>(random.between(0, 3000) /
                                                                     (1 + random.between(0, 300)));
    ASSERT_EQ(received.has(seq), plain.contains(seq));
    ASSERT_EQ(received.add(seq), plain.insert(seq).second);
    ASSERT_EQ(received.count(), plain.size());
    ASSERT_TRUE(received.expected() == 0 || plain.contains(received.expected() - 1));
    ASSERT_FALSE(plain.contains(received.expected()));
  }
}

// Full packets one behind the other: the size over the rate, a packet more per further hop, and the
// latencies, to the picosecond.
TEST(PacketNetwork, APipelineTakesItsClosedForm) {
  for (const std::string& transport : kAll) {
    for (int hops : {1, 3}) {
      FlowProgram program = ringProgram(5);
      addFlow(program, 2, hops, 400 * 8936);
      PacketNetwork network(program, optionsOf(transport));
      const Outcome outcome = run(program, network);
      EXPECT_EQ(toPicoseconds(outcome.makespan_s), (400 + hops - 1) * 720'000 + hops * 1'000'000)
          << transport << " " << hops;
      EXPECT_EQ(network.packetHops(), 400 * hops);
    }
  }
}

// TestRandom flows on a ring: what went in comes out, no link carries more than its rate, nothing
// is faster than its links, and a second run gives the same.
TEST(PacketNetwork, InvariantsOfRandomRuns) {
  TestRandom random(5);
  for (int round = 0; round < 30; ++round) {
    FlowProgram program = ringProgram(6);
    const int flows = static_cast<int>(random.between(1, 20));
    for (int i = 0; i < flows; ++i) {
      addFlow(program, static_cast<int>(random.between(0, 5)),
              static_cast<int>(random.between(1, 4)),
              static_cast<double>(random.between(1, 400'000)));
      if (i > 0 && random.chance(0.3)) program.addDependency(i - 1, i);
    }
    PacketOptions options = optionsOf(kAll[round % 5]);
    const bool finite = random.chance(0.5);
    if (finite) options.relay_queue_bytes = 40'000;
    options.acks = random.chance(0.5) ? ReturnPath::kLinks : ReturnPath::kInstant;
    options.seed = round;
    PacketNetwork network(program, options);
    const Outcome outcome = run(program, network);
    std::vector<double> crossed(program.links().size(), 0);
    for (int i = 0; i < flows; ++i) {
      const Task& task = program.graph().tasks()[i];
      for (int link : program.route(task.resource)) crossed[link] += task.amount;
      const double took_s = outcome.finish_s[i] - outcome.start_s[i];
      EXPECT_GE(took_s, task.amount * 8 / kRate + task.latency_s - 1e-12);
    }
    int64_t trimmed = 0;
    for (size_t link = 0; link < crossed.size(); ++link) trimmed += network.counts(link).trimmed;
    for (size_t link = 0; link < crossed.size(); ++link) {
      if (network.dropped() + trimmed == 0) {
        EXPECT_EQ(outcome.link_bytes[link], crossed[link]);
      }
      EXPECT_GE(outcome.link_bytes[link], crossed[link]);
      const double busy_s = static_cast<double>(network.counts(link).wire_bytes) * 8 / kRate;
      EXPECT_LE(busy_s, outcome.makespan_s + 1e-9);
    }
    if (!finite && kAll[round % 5] != "ndp") {
      EXPECT_EQ(network.dropped(), 0);
    }
    const Outcome again = run(program, network);
    EXPECT_EQ(again.finish_s, outcome.finish_s);
    EXPECT_EQ(again.events, outcome.events);
  }
}

TEST(PacketNetwork, PausesKeepALosslessNetworkFromLosing) {
  FlowProgram program = ringProgram(6);
  for (int source : {0, 1, 2}) addFlow(program, source, 3 - source, 2e6);  // all to host 3
  PacketOptions options = optionsOf("roce");
  options.lossless = true;
  options.pause_above_bytes = 40'000;
  options.resume_below_bytes = 20'000;
  PacketNetwork network(program, options);
  run(program, network);
  EXPECT_EQ(network.dropped(), 0);
  EXPECT_GT(network.counts(0).pauses + network.counts(1).pauses, 0);
  EXPECT_LE(network.counts(2).most_queued_bytes, 2 * (40'000 + 25'000 + 4 * 9000));
}

TEST(PacketNetwork, ADeadlockOfPausedLinksIsReportedAsACycle) {
  FlowProgram program = ringProgram(4);
  for (int source = 0; source < 4; ++source) {
    for (int copy = 0; copy < 2; ++copy) addFlow(program, source, 3, 5e6);
  }
  PacketOptions options = optionsOf("roce");
  options.lossless = true;
  options.pause_above_bytes = 40'000;
  options.resume_below_bytes = 20'000;
  PacketNetwork network(program, options);
  try {
    run(program, network);
    FAIL() << "no deadlock found";
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("deadlock at"), std::string::npos) << text;
    for (const char* link :
         {"link 0 (0 to 1)", "link 1 (1 to 2)", "link 2 (2 to 3)", "link 3 (3 to 0)"}) {
      EXPECT_NE(text.find(link), std::string::npos) << text;
    }
  }
}

// The link is down for 1 ms in the middle: what was on it is lost and sent again.
TEST(PacketNetwork, FlowsSurviveALinkThatFailsAndComesBack) {
  for (const std::string& transport : kAll) {
    FlowProgram program = ringProgram(4);
    addFlow(program, 0, 2, 4e6);
    const auto where = [] { return std::string("change"); };
    program.addChange({1e-4, 1, 0}, where);
    program.addChange({1.1e-3, 1, kRate}, where);
    PacketNetwork network(program, optionsOf(transport));
    const Outcome outcome = run(program, network);
    EXPECT_GT(network.dropped(), 0) << transport;
    EXPECT_GT(outcome.makespan_s, 1.1e-3 + 2.5e6 * 8 / kRate);
  }
}

TEST(PacketNetwork, AReroutedFlowGoesTheOtherWay) {
  for (const std::string& transport : kAll) {
    FlowProgram program = ringProgram(4);
    addFlow(program, 0, 1, 4e6);
    program.addChange({1e-4, 0, 0}, [] { return std::string("change"); });
    PacketNetwork network(program, optionsOf(transport));
    network.planReroute(2e-4, 0, {7, 6, 5});  // 0 to 3, 3 to 2, 2 to 1
    const Outcome outcome = run(program, network);
    EXPECT_GE(outcome.link_bytes[5], 2.5e6) << transport;
    EXPECT_LT(outcome.makespan_s, 5e-3);
  }
}

// Every 100 us the circuits swap: clockwise links that are there go, those of the other way come,
// and the flow is sent the other way round. Packets that relays hold by then are drained first.
TEST(PacketNetwork, NothingIsLostWhenCircuitsMove) {
  for (const std::string& transport : kAll) {
    for (bool queue_at_sender : {true, false}) {
      FlowProgram program = ringProgram(4);
      for (int source = 0; source < 4; ++source) addFlow(program, source, 2, 4e6);
      PacketOptions given = optionsOf(transport);
      given.dctcp.queue_at_sender = queue_at_sender;
      PacketNetwork network(program, given);
      int moves = 0;
      const auto choose = [&](double, const Reconfigurer::Demand& demand) {
        EXPECT_LE(demand.size(), 4u);
        for (const auto& [pair, size_bytes] : demand) EXPECT_GT(size_bytes, 0);
        const bool clockwise = ++moves % 2 == 0;
        Reconfigurer::CircuitMove move;
        for (int link = 0; link < 8; ++link) {
          move.rates.emplace_back(link, (link < 4) == clockwise ? kRate : 0);
        }
        for (int from = 0; from < 4; ++from) {
          const int to = (from + 2) % 4;
          const std::vector<LinkUse> there{{from, 1.0}, {(from + 1) % 4, 1.0}};
          const std::vector<LinkUse> back{{4 + (from + 3) % 4, 1.0}, {4 + to, 1.0}};
          move.paths.push_back({from, to, clockwise ? there : back, 0.0});
        }
        return std::optional(move);
      };
      TaskRunner runner(program.hosts());
      RunOptions options;
      options.changes = program.changes();
      options.control_at_s = 0;
      options.control = Reconfigurer(network, program, 1e-4, 2e-5, choose);
      const Outcome outcome = runner.run(program.graph(), network, options);
      EXPECT_GT(moves, 3) << transport;
      EXPECT_EQ(network.dropped(), 0) << transport;
      EXPECT_TRUE(network.drained());
      EXPECT_GT(outcome.link_bytes[0], 0);
      EXPECT_GT(outcome.link_bytes[4], 0);
    }
  }
}

TEST(PacketNetwork, SprayedPacketsUseAllPathsAtOnce) {
  FlowProgram program(2, 2);
  for (int i = 0; i < 3; ++i) {
    program.addLink({i, 0, 1, kRate, kLatencyNs}, [] { return std::string("link"); });
  }
  program.addFlow({0, 0, 1, 300 * 8936.0}, std::vector<int>{0}, [] { return std::string("flow"); });
  PacketNetwork network(program, optionsOf("constant"));
  network.spread(0, {{0}, {1}, {2}});
  EXPECT_EQ(toPicoseconds(run(program, network).makespan_s), 100 * 720'000 + 1'000'000);
}

TEST(PacketNetwork, WrongOptionsAndPathsAreErrors) {
  const FlowProgram program = [] {
    FlowProgram made(3, 3);
    made.addLink({0, 0, 1, kRate, 0}, [] { return std::string("link"); });
    made.addFlow({0, 0, 1, 1}, std::vector<int>{0}, [] { return std::string("flow"); });
    return made;
  }();
  PacketOptions options = optionsOf("dctcp");
  options.acks = ReturnPath::kLinks;
  EXPECT_THROW(PacketNetwork(program, options), std::invalid_argument);
  options = {};
  options.payload_bytes = 0;
  EXPECT_THROW(PacketNetwork(program, options), std::invalid_argument);
  PacketNetwork network(program, {});
  EXPECT_THROW(network.planReroute(0, 0, {1}), std::invalid_argument);
  EXPECT_THROW(network.planReroute(-1, 0, {0}), std::invalid_argument);
  EXPECT_THROW(network.spread(0, {}), std::invalid_argument);
}

}  // namespace
}  // namespace topoopt::packet
