// The flow level in isolation: the tree of ends, pairs of links, rates kept up to date, programs
// and their text.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/dependents.h"
#include "sim/core/event_queue.h"
#include "sim/core/flow_program_reader.h"
#include "sim/core/min_tree.h"
#include "sim/core/task_graph.h"
#include "sim/core/task_runner.h"
#include "sim/flow/flow_network.h"
#include "sim/flow/link_pairs.h"
#include "sim/flow/max_min_rates.h"
#include "sim/flow/ring_transfers.h"

namespace topoopt {
namespace {

TEST(TaskGraph, ANumberOfDevicesThatIsNotAboveZeroIsRefusedWhereItIsSet) {
  TaskGraph graph;
  EXPECT_THROW(graph.setDevicesAtOnce(0), std::invalid_argument);
  EXPECT_THROW(graph.setDevicesAtOnce(std::nan("")), std::invalid_argument);
  graph.setDevicesAtOnce(2);
  EXPECT_EQ(graph.devicesAtOnce(), 2);
}

TEST(MinTreeTest, FindsAndTakesWhatAPlainListDoes) {
  std::mt19937 random(1);
  for (int count : {0, 1, 15, 16, 17, 300, 5000}) {
    MinTree tree;
    tree.reset(count);
    std::vector<double> keys(count, MinTree::kAbsent);
    for (int round = 0; round < 60; ++round) {
      for (int i = 0; i < std::min(count, 20); ++i) {
        const int item = static_cast<int>(random() % count);
        keys[item] = random() % 4 == 0 ? MinTree::kAbsent : static_cast<double>(random() % 100);
        tree.set(item, keys[item]);
      }
      const auto least = std::ranges::min_element(keys);
      ASSERT_EQ(tree.least(), least == keys.end() ? MinTree::kAbsent : *least);
      if (round % 3 != 0) continue;
      const double limit = static_cast<double>(random() % 60);
      std::vector<int> taken, expected;
      tree.take(limit, taken);
      for (int i = 0; i < count; ++i) {
        if (keys[i] > limit) continue;
        expected.push_back(i);
        keys[i] = MinTree::kAbsent;
      }
      ASSERT_EQ(taken, expected);
    }
  }
}

TEST(EventQueueTest, GivesAllEventsUpToALimit) {
  std::mt19937 random(2);
  EventQueue queue;
  std::vector<std::pair<double, int>> waiting;
  double now = 0;
  for (int i = 0; i < 5000; ++i) {
    const double time = now + static_cast<double>(random() % 5);
    queue.push(time, i);
    waiting.emplace_back(time, i);
    const auto first = std::ranges::min_element(waiting);
    ASSERT_EQ(queue.least(), first->first);
    if (random() % 2 == 0) continue;
    now += static_cast<double>(random() % 4);
    std::vector<EventQueue::Event> taken;
    queue.take(now, taken);
    std::vector<std::pair<double, int>> found, due;
    for (const EventQueue::Event& event : taken) found.emplace_back(event.time, event.item);
    std::ranges::sort(found);
    std::ranges::copy_if(waiting, std::back_inserter(due),
                         [now](const auto& event) { return event.first <= now; });
    std::erase_if(waiting, [now](const auto& event) { return event.first <= now; });
    std::ranges::sort(due);
    ASSERT_EQ(found, due);
    ASSERT_EQ(queue.empty(), waiting.empty());
  }
  queue.push(now, 0);
  queue.clear();
  ASSERT_EQ(queue.least(), EventQueue::kNever);
}

// Tasks wait for one or two lists that many of them share, long ones and such that differ in one
// place.
TEST(DependentsTest, ATaskStartsOnceAndWhenTheLastOfItsListsIsDone) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    constexpr int kTasks = 200, kFirst = 100;
    std::vector<std::vector<int>> lists;
    for (int i = 0; i < 12; ++i) {
      std::vector<int> list;
      for (int task = 0; task < kFirst; ++task) {
        if (random() % 12 < static_cast<unsigned>(i)) list.push_back(task);
      }
      lists.push_back(list);
      if (list.empty()) continue;
      list[random() % list.size()] = static_cast<int>(random() % kFirst);
      lists.push_back(list);
    }
    TaskGraph graph;
    for (int task = 0; task < kTasks; ++task) graph.addDelay(0);
    std::vector<int> last(kTasks, -1), started(kTasks, -1);
    for (int task = kFirst; task < kTasks; ++task) {
      for (int i = static_cast<int>(random() % 3); i > 0; --i) {
        for (int before : lists[random() % lists.size()]) {
          graph.addDependency(before, task);
          last[task] = std::max(last[task], before);
        }
      }
    }
    Dependents dependents;
    dependents.prepare(graph);
    for (int task = 0; task < kTasks; ++task) ASSERT_EQ(dependents.isFree(task), last[task] < 0);
    for (int done = 0; done < kFirst; ++done) {
      dependents.release(done, [&](int task) {
        ASSERT_EQ(started[task], -1);
        started[task] = done;
      });
    }
    ASSERT_EQ(started, last);
  }
}

// Max-min fair by its certificate: nothing over capacity, and every path has a full link on which
// no rate is higher. Nothing else is max-min fair.
void expectFair(const std::vector<double>& capacity, const PathTable& paths,
                const std::vector<int>& count, const MaxMinRates& rates) {
  std::vector<double> used(capacity.size(), 0), highest(capacity.size(), 0);
  for (int path = 0; path < paths.size(); ++path) {
    if (count[path] == 0) continue;
    for (const LinkUse& use : paths.uses(path)) {
      used[use.link] += count[path] * use.load * rates.rate(path);
      highest[use.link] = std::max(highest[use.link], rates.rate(path));
    }
  }
  for (size_t link = 0; link < capacity.size(); ++link) {
    ASSERT_LE(used[link], capacity[link] * (1 + 1e-9));
  }
  for (int path = 0; path < paths.size(); ++path) {
    if (count[path] == 0) continue;
    ASSERT_TRUE(std::ranges::any_of(paths.uses(path),
                                    [&](const LinkUse& use) {
                                      return used[use.link] >= capacity[use.link] * (1 - 1e-9) &&
                                             rates.rate(path) >= highest[use.link] * (1 - 1e-9);
                                    }))
        << "path " << path << " could be faster";
  }
}

// Equal links give ties, links from 1 to 10^9 lose digits, loads of sevenths are not exact.
enum class Links { kEqual, kAlike, kWide };

double capacityOf(Links links, std::mt19937& random) {
  if (links == Links::kEqual) return 12.5e9;
  const double drawn = static_cast<double>(random() % 10);
  return links == Links::kAlike ? 1 + drawn : std::pow(10.0, drawn);
}

void changeAtRandom(Links kind, int links, int path_count, std::mt19937& random) {
  std::vector<double> capacity;
  for (int i = 0; i < links; ++i) capacity.push_back(capacityOf(kind, random));
  PathTable paths;
  const bool sevenths = random() % 2 == 0;
  for (int i = 0; i < path_count; ++i) {
    std::vector<LinkUse> uses;
    for (size_t hop = 0; hop <= random() % 5; ++hop) {
      uses.push_back({static_cast<int>(random() % links),
                      sevenths ? static_cast<double>(1 + random() % 7) / 7 : 1.0});
    }
    paths.add(uses);
  }
  MaxMinRates rates(capacity, paths);
  std::vector<int> count(paths.size(), 0);
  for (int step = 0; step < 60; ++step) {
    const bool most_leave = step % 20 == 19;  // so that paths are alone on their links then
    const size_t changes = 1 + random() % (step % 7 == 0 ? path_count : 3);
    for (size_t i = 0; i < changes; ++i) {
      const int path = static_cast<int>(random() % paths.size());
      int delta = 1 + static_cast<int>(random() % 2);
      if (count[path] > 0 && (most_leave || random() % 2 == 0)) delta = -count[path];
      count[path] += delta;
      rates.change(path, delta);
    }
    if (random() % 8 == 0) {
      const int link = static_cast<int>(random() % links);
      capacity[link] = random() % 3 == 0 ? 0.0 : capacityOf(kind, random);
      rates.changeCapacity(link);
    }
    random() % 6 == 0 ? rates.solveAnew() : rates.solve();
    ASSERT_NO_FATAL_FAILURE(expectFair(capacity, paths, count, rates)) << "step " << step;
  }
}

TEST(MaxMinRatesTest, StaysFairAsFlowsAndCapacitiesChange) {
  std::mt19937 random(3);
  for (int instance = 0; instance < 12; ++instance) {
    for (Links kind : {Links::kEqual, Links::kAlike, Links::kWide}) {
      SCOPED_TRACE(instance);
      ASSERT_NO_FATAL_FAILURE(
          changeAtRandom(kind, 2 + static_cast<int>(random() % 12), 25, random));
      ASSERT_NO_FATAL_FAILURE(
          changeAtRandom(kind, 60, 25 + static_cast<int>(random() % 100), random));
    }
  }
}

// All-to-all on a circulant: the links of a stride fill at the same level, up to rounding, and most
// paths have several bottlenecks. Distances leave one after the other, and come back.
TEST(MaxMinRatesTest, SettlesWhereManyLinksAreEqual) {
  constexpr int kServers = 48;
  for (const int stride : {5, 7}) {
    const double weight = stride == 5 ? 0.5 : 1.0 / 3;
    const std::vector<double> capacity(2 * kServers, 12.5e9);
    PathTable paths;
    for (int distance = 1; distance < kServers; ++distance) {
      for (int source = 0; source < kServers; ++source) {
        std::vector<LinkUse> uses;
        for (int first = 0; first < 2; ++first) {  // long strides first, or short ones
          int at = source;
          const auto walk = [&](int step, int link, int hops) {
            for (; hops > 0; --hops, at = (at + step) % kServers) {
              uses.push_back({link + at, first == 0 ? weight : 1 - weight});
            }
          };
          if (first == 0) walk(stride, kServers, distance / stride);
          walk(1, 0, distance % stride);
          if (first == 1) walk(stride, kServers, distance / stride);
        }
        paths.add(uses);
      }
    }
    MaxMinRates rates(capacity, paths);
    std::vector<int> count(paths.size(), 1);
    for (int path = 0; path < paths.size(); ++path) rates.change(path, 1);
    for (int wave = 0; wave < 2 * (kServers - 1); ++wave) {
      rates.solve();
      ASSERT_NO_FATAL_FAILURE(expectFair(capacity, paths, count, rates)) << "wave " << wave;
      for (int source = 0; source < kServers; ++source) {
        const int path = wave * 29 % (kServers - 1) * kServers + source;
        const int delta = count[path] > 0 ? -1 : 1;
        count[path] += delta;
        rates.change(path, delta);
      }
    }
  }
}

// A path that is alone may keep its place while it has no flow; others must not see it.
TEST(MaxMinRatesTest, APathWithoutFlowsTakesNothingFromOthers) {
  const std::vector<double> capacity{10, 10};
  PathTable paths;
  paths.add({{0, 1.0}, {1, 1.0}});
  paths.add({{0, 1.0}});
  MaxMinRates rates(capacity, paths);
  rates.change(0, 3);
  rates.solve();
  EXPECT_EQ(rates.rate(0), 10.0 / 3);
  rates.change(0, -3);
  rates.solve();
  EXPECT_EQ(rates.rate(0), 0);
  rates.change(1, 1);
  rates.solve();
  EXPECT_EQ(rates.rate(1), 10);
  rates.change(0, 1);
  rates.solve();
  EXPECT_EQ(rates.rate(0), 5);
  EXPECT_EQ(rates.rate(1), 5);
}

TEST(LinkPairsTest, AddsUpWhatAPlainMapDoes) {
  std::mt19937 random(4);
  constexpr int kLinks = 60;
  LinkPairs pairs;
  for (int run = 0; run < 2; ++run) {  // an instance can be used again
    pairs.reset(kLinks);
    std::map<std::pair<int, int>, std::vector<double>> paths;
    for (int step = 0; step < 20000; ++step) {
      const int holder = static_cast<int>(random() % kLinks);
      const int crossed = static_cast<int>(random() % kLinks);
      std::vector<double>& weights = paths[{holder, crossed}];
      if (step < 10000 ? random() % 4 > 0 : random() % 4 == 0) {
        weights.push_back(static_cast<double>(1 + random() % 8) / 8);
        ASSERT_EQ(pairs.add(holder, crossed, weights.back()), weights.size() == 1);
      } else if (!weights.empty()) {
        const double weight = weights.back();
        weights.pop_back();
        ASSERT_EQ(pairs.remove(holder, crossed, weight), weights.empty());
      }
      if (!weights.empty()) {
        weights.back() += 0.5;
        pairs.change(holder, crossed, 0.5);
      }
    }
    std::map<std::pair<int, int>, double> expected, by_row, by_column;
    for (const auto& [pair, weights] : paths) {
      for (double weight : weights) expected[pair] += weight;
    }
    for (int link = 0; link < kLinks; ++link) {
      for (const auto& cell : pairs.row(link)) by_row[{link, cell.link}] = cell.weight;
      for (const auto& cell : pairs.column(link)) by_column[{cell.link, link}] = cell.weight;
    }
    ASSERT_EQ(by_row, expected);
    ASSERT_EQ(by_column, expected);
  }
}

constexpr char kChain[] =
    "nodes 3 hosts 3\nlink 0 0 1 8e9 1000\nlink 1 1 2 8e9 1000\n"
    "flow 5 0 1 1000 path 1 0 deps 0\nflow 6 1 2 1000 path 1 1 deps 1 5\n";

TEST(FlowProgramTest, RunsWhatTheTextSays) {
  const FlowProgram program = parseFlowProgram(kChain);
  ProgramFlowNetwork level(program);
  TaskRunner runner(program.hosts());
  for (int run = 0; run < 2; ++run) {  // an instance can be used again
    const Outcome& outcome = runner.run(program.graph(), level.network);
    EXPECT_NEAR(outcome.finish_s[0], 2e-6, 1e-18);
    EXPECT_NEAR(outcome.finish_s[1], 4e-6, 1e-18);
    EXPECT_EQ(outcome.start_s[1], outcome.finish_s[0]);
    EXPECT_EQ(outcome.link_bytes, (std::vector<double>{1000, 1000}));
  }
  EXPECT_EQ(program.taskId(1), 6);
}

TEST(FlowProgramTest, SurvivesTextThatIsCutAnywhere) {
  const std::string text = kChain;
  for (size_t size = 0; size < text.size(); ++size) {
    try {
      parseFlowProgram(text.substr(0, size));
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()).rfind("line ", 0), 0U) << error.what();
    }
  }
}

TEST(RingTransfersTest, RingsComeGoAndTakeOtherPathsWithoutLosingBytes) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 20; ++trial) {
    const int links = 2 + static_cast<int>(random() % 6);
    RingTransfers transfers(std::vector<double>(links, 4.0));
    const auto drawn = [&](int hops) {
      std::vector<LinkPath> paths(hops);
      for (LinkPath& path : paths) {
        path.assign(1 + random() % 3, 0);
        for (int& link : path) link = static_cast<int>(random() % links);
      }
      return paths;
    };
    std::map<int, std::pair<int, int>> left;  // ring -> hops, rounds
    int begun = 0;
    for (double until_s = 1; begun < 12 || !left.empty(); until_s += 1) {
      if (begun < 12) {
        const int hops = 1 + static_cast<int>(random() % 4);
        const int rounds = 1 + static_cast<int>(random() % 3);
        left[transfers.start(drawn(hops), 3.0, rounds)] = {hops, rounds};
        ++begun;
      }
      for (const auto& [ring, of] : left) {
        if (random() % 3 == 0) transfers.reroute(ring, drawn(of.first));
      }
      while (transfers.now() < until_s) {
        const std::vector<int> ended = transfers.advance(until_s);
        if (ended.empty()) break;
        for (int ring : ended) {
          const auto [hops, rounds] = left.at(ring);
          EXPECT_EQ(transfers.endedFlows(ring).count, hops * rounds);
          EXPECT_NEAR(transfers.endedFlows(ring).bytes, 3.0 * hops * rounds, 1e-6);
          left.erase(ring);
        }
      }
      ASSERT_LT(until_s, 1000);
    }
  }
}

TEST(FlowProgramTest, SpellsOutALongCycleOnlyInPart) {
  std::string text = "nodes 2 hosts 2\nlink 0 0 1 8e9 0\n";
  for (int i = 0; i < 100; ++i) {
    text += "flow " + std::to_string(i) + " 0 1 8 path 1 0 deps 1 " +
            std::to_string((i + 1) % 100) + "\n";
  }
  try {
    parseFlowProgram(text);
    FAIL() << "a cycle was accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("(100 in all)"), std::string::npos) << error.what();
    EXPECT_LT(std::string(error.what()).size(), 400U);
  }
}

}  // namespace
}  // namespace topoopt
