// Collectives whose data lands while they run, in any order, and whose results leave slice by
// slice.

#include "collectives/group/landing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>

#include "support/group_steps.h"
#include "support/network.h"
#include "support/traffic.h"

namespace topoopt {
namespace {

using Bytes = std::vector<std::byte>;
using Slice = Landing::Slice;

constexpr size_t kSliceBytes = 4 << 10;
constexpr std::byte kOld{0xa5};  // of memory in which nothing has landed

// One member's device: some bytes of each buffer land, and all leave.
class Device {
 public:
  struct Region {
    Bytes host;
    Bytes in;          // as large as `host`; of it lands ...
    size_t first = 0;  // ... from here ...
    size_t end = 0;    // ... to here
    Bytes out = {};    // what was copied back
  };

  explicit Device(std::vector<Region> regions) : regions_(std::move(regions)) {
    std::vector<Landing::Region> extents;
    for (size_t r = 0; r < regions_.size(); ++r) {
      Region& region = regions_[r];
      region.out.assign(region.host.size(), kOld);
      std::vector<bool> pending((region.host.size() + kSliceBytes - 1) / kSliceBytes, false);
      returned_.push_back(pending);
      for (size_t s = region.first / kSliceBytes; s * kSliceBytes < region.end; ++s) {
        if (region.first == region.end) break;
        pending[s] = true;
        left_.push_back({r, s});
      }
      extents.push_back({region.host.data(), region.host.size(), pending});
    }
    landing = std::make_shared<Landing>(std::move(extents), kSliceBytes, [this] { notify(false); });
  }

  void* host(size_t region) { return regions_[region].host.data(); }
  const Bytes& out(size_t region) const { return regions_[region].out; }
  size_t early() const { return early_; }

  void land(Slice slice) {
    Region& region = regions_[slice.region];
    const size_t first = std::max(slice.index * kSliceBytes, region.first);
    const size_t end = std::min((slice.index + 1) * kSliceBytes, region.end);
    std::copy_n(region.in.begin() + static_cast<ptrdiff_t>(first), end - first,
                region.host.begin() + static_cast<ptrdiff_t>(first));
    landing->landed(slice);
  }

  void takeFinal() {
    for (const Slice& slice : landing->takeFinal()) {
      back(slice);
      ++early_;
    }
  }

  void over() { notify(true); }

  // Lands everything in an order of its own, or in that of the collective, and returns when the
  // collective is over and all has been copied back.
  void run(TestRandom random) {
    std::shuffle(left_.begin(), left_.end(), random.engine());
    const bool obeys = random.chance(0.5);
    while (true) {
      if (obeys) obey(landing->takeOrder());
      if (!left_.empty()) {
        land(left_.back());
        left_.pop_back();
      }
      takeFinal();
      if (random.chance(0.3)) std::this_thread::yield();
      std::unique_lock lock(mutex_);
      if (left_.empty()) {
        ASSERT_TRUE(changed_.wait_for(lock, kWaitLimit, [this] { return raised_ || over_; }));
      }
      raised_ = false;
      if (over_ && left_.empty()) break;
    }
    for (size_t r = 0; r < regions_.size(); ++r) {
      for (size_t s = 0; s < returned_[r].size(); ++s) {
        if (!returned_[r][s]) back({r, s});
      }
    }
  }

  std::shared_ptr<Landing> landing;

 private:
  void back(Slice slice) {
    Region& region = regions_[slice.region];
    EXPECT_FALSE(returned_[slice.region][slice.index]) << "a slice was final twice";
    returned_[slice.region][slice.index] = true;
    const size_t first = slice.index * kSliceBytes;
    const size_t count = std::min(kSliceBytes, region.host.size() - first);
    std::copy_n(region.host.begin() + static_cast<ptrdiff_t>(first), count,
                region.out.begin() + static_cast<ptrdiff_t>(first));
  }

  // The last of left_ is the next; what the collective does not use may wait.
  void obey(const std::vector<Slice>& order) {
    for (auto wanted = order.rbegin(); wanted != order.rend(); ++wanted) {
      const auto found = std::find(left_.begin(), left_.end(), *wanted);
      if (found == left_.end()) continue;
      left_.erase(found);
      left_.push_back(*wanted);
    }
  }

  void notify(bool over) {
    std::lock_guard lock(mutex_);
    raised_ = true;
    over_ = over_ || over;
    changed_.notify_all();
  }

  std::vector<Region> regions_;
  std::vector<Slice> left_;
  std::vector<std::vector<bool>> returned_;
  size_t early_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
  bool over_ = false;
};

Bytes bytesOf(const std::vector<int32_t>& numbers) {
  Bytes bytes(numbers.size() * sizeof(int32_t));
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::vector<int32_t> numbersOf(int member, size_t count) {
  std::vector<int32_t> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<int32_t>((i * 7 + 1) % 1009) * (member + 1);
  }
  return numbers;
}

std::vector<int32_t> sumOf(int size, size_t count) {
  std::vector<int32_t> sum = numbersOf(0, count);
  for (int32_t& number : sum) number *= size * (size + 1) / 2;
  return sum;
}

CallTerms landing(Device& device) {
  CallTerms terms{kNoHurry};
  terms.landing = device.landing;
  return terms;
}

Device::Region lands(const std::vector<int32_t>& numbers) {
  const Bytes in = bytesOf(numbers);
  return {Bytes(in.size(), kOld), in, 0, in.size()};
}

Device::Region receives(size_t count) {
  const Bytes old(count * sizeof(int32_t), kOld);
  return {old, old};
}

struct Case {
  CallName name;
  int size;
  size_t count;
  int root;

  // `count` numbers of each member; the blocks of gathers and scatters are that large.
  std::unique_ptr<Device> device(int member) const {
    const size_t n = static_cast<size_t>(size);
    switch (name) {
      case CallName::kBroadcast:
        return make({member == root ? lands(numbersOf(root, count)) : receives(count)});
      case CallName::kReduce:
        return make({lands(numbersOf(member, count)), receives(count)});
      case CallName::kAllGather: {
        Device::Region region = receives(count * n);
        const Bytes own = bytesOf(numbersOf(member, count));
        region.first = own.size() * static_cast<size_t>(member);
        region.end = region.first + own.size();
        std::copy(own.begin(), own.end(), region.in.begin() + static_cast<ptrdiff_t>(region.first));
        return make({region});
      }
      case CallName::kReduceScatter:
        return make({lands(numbersOf(member, count * n)), receives(count)});
      default:
        return make({lands(numbersOf(member, count))});
    }
  }

  void start(Group& group, Device& device, Done done) const {
    const size_t n = static_cast<size_t>(size);
    const size_t bytes = count * sizeof(int32_t);
    const auto type = DataType::kInt32;
    const auto op = ReduceOp::kSum;
    const CallTerms terms = landing(device);
    switch (name) {
      case CallName::kBroadcast:
        return group.broadcast(device.host(0), bytes, root, terms, std::move(done));
      case CallName::kReduce:
        return group.reduce(device.host(0), device.host(1), count, type, op, root, terms,
                            std::move(done));
      case CallName::kAllGather:
        return group.allGather(device.host(0), std::vector<size_t>(n, bytes), terms,
                               std::move(done));
      case CallName::kReduceScatter:
        return group.reduceScatter(device.host(0), device.host(1), std::vector<size_t>(n, count),
                                   type, op, terms, std::move(done));
      default:
        return group.allReduce(device.host(0), count, type, op, terms, std::move(done));
    }
  }

  void check(const Device& device, int member) const {
    const size_t n = static_cast<size_t>(size);
    switch (name) {
      case CallName::kBroadcast:
        EXPECT_TRUE(sameBytes(device.out(0), bytesOf(numbersOf(root, count))));
        break;
      case CallName::kReduce:
        EXPECT_TRUE(sameBytes(device.out(0), bytesOf(numbersOf(member, count))));
        EXPECT_TRUE(member != root || sameBytes(device.out(1), bytesOf(sumOf(size, count))));
        break;
      case CallName::kAllGather: {
        Bytes all;
        for (int i = 0; i < size; ++i) {
          const Bytes part = bytesOf(numbersOf(i, count));
          all.insert(all.end(), part.begin(), part.end());
        }
        EXPECT_TRUE(sameBytes(device.out(0), all));
        break;
      }
      case CallName::kReduceScatter: {
        const std::vector<int32_t> sum = sumOf(size, count * n);
        const auto first =
            sum.begin() + static_cast<ptrdiff_t>(count * static_cast<size_t>(member));
        EXPECT_TRUE(sameBytes(device.out(0), bytesOf(numbersOf(member, count * n))));
        EXPECT_TRUE(
            sameBytes(device.out(1), bytesOf({first, first + static_cast<ptrdiff_t>(count)})));
        break;
      }
      default:
        EXPECT_TRUE(sameBytes(device.out(0), bytesOf(sumOf(size, count))));
    }
  }

 private:
  static std::unique_ptr<Device> make(std::vector<Device::Region> regions) {
    return std::make_unique<Device>(std::move(regions));
  }
};

constexpr CallName kNames[] = {CallName::kAllReduce, CallName::kBroadcast, CallName::kReduce,
                               CallName::kAllGather, CallName::kReduceScatter};

// One collective on all members, each with a thread that copies.
template <typename Groups>
void runCase(const Case& run, Groups& members, TestRandom& random) {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Outcome> outcomes(static_cast<size_t>(run.size));
  std::vector<std::thread> copiers;
  for (int i = 0; i < run.size; ++i) devices.push_back(run.device(i));
  for (int i = 0; i < run.size; ++i) {
    Device& device = *devices[static_cast<size_t>(i)];
    copiers.emplace_back([&device, seed = random.word()] { device.run(TestRandom(seed)); });
    run.start(members[i], device,
              [&device, done = outcomes[static_cast<size_t>(i)].done()](std::exception_ptr error) {
                done(error);
                device.over();
              });
  }
  for (Outcome& outcome : outcomes) EXPECT_EQ(outcome.wait(nameOf(run.name)), "");
  for (std::thread& copier : copiers) copier.join();
  for (int i = 0; i < run.size; ++i) run.check(*devices[static_cast<size_t>(i)], i);
}

std::vector<int> allRanks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// A group by a given algorithm, or with several members on a server.
struct Layout {
  const char* algorithm;
  std::vector<Cable> cables;
  std::vector<plan::Ring> rings;
  std::vector<int> servers{};
  plan::Grid grid{};
};

std::vector<Layout> layouts() {
  const std::vector<plan::Ring> rings = {{{0, 1, 2, 3}, 0.7}, {{0, 3, 2, 1}, 0.3}};
  std::vector<Layout> list;
  for (const char* algorithm : {"ring", "multi_ring", "both_ways", "tree", "doubling"}) {
    list.push_back({algorithm, ringOf(4), rings});
  }
  list.push_back({"torus", completeOf(4), rings, {}, {{0, 1}, {2, 3}}});
  list.push_back({"auto", completeOf(5), {{{0, 2, 4}, 1.0}}, {0, 0, 1, 1, 2}});
  return list;
}

class Team {
 public:
  Team(Network& network, const Layout& layout) {
    for (int i = 0; i < network.size(); ++i) {
      GroupConfig config;
      config.name = layout.algorithm;
      config.channel = 1;
      config.rank = i;
      config.ranks = allRanks(network.size());
      config.rings = layout.rings;
      config.servers = layout.servers;
      config.grid = layout.grid;
      config.algorithm = layout.algorithm;
      groups_.push_back(Group::open(network.at(i), config));
    }
  }
  ~Team() {
    for (const auto& group : groups_) group->shutdown();
  }

  Group& operator[](int member) { return *groups_[static_cast<size_t>(member)]; }

 private:
  std::vector<std::shared_ptr<Group>> groups_;
};

TEST(Landings, ResultsAreRightInWhateverOrderDataLands) {
  TestRandom random(1901);
  for (const Layout& layout : layouts()) {
    const int size = layout.cables.size() > 6 ? 5 : 4;
    Network network({.size = size, .cables = layout.cables, .routes = 2}, random);
    Team team(network, layout);
    for (size_t repeat = 0; repeat < std::max<size_t>(5, partOf(25)); ++repeat) {
      const size_t count = random.chance(0.5) ? random.size(60000) : random.between(1, 60000);
      const Case run{kNames[repeat % std::size(kNames)], size, count,
                     static_cast<int>(random.between(0, static_cast<size_t>(size) - 1))};
      SCOPED_TRACE(std::string(nameOf(run.name)) + " of " + std::to_string(run.count) + " by " +
                   layout.algorithm);
      ASSERT_NO_FATAL_FAILURE(runCase(run, team, random));
    }
  }
}

// While the rest of the data is not even there, and the collective therefore not over.
TEST(Landings, WhatIsFinalLeavesBeforeTheCollectiveIsOver) {
  TestRandom random(1902);
  Network network({.size = 3, .cables = lineOf(3)}, random);
  Members members(network, 1, allRanks(3), 1, random);
  const Case run{CallName::kBroadcast, 3, 1 << 20, 0};
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Outcome> outcomes(3);
  for (int i = 0; i < 3; ++i) {
    devices.push_back(run.device(i));
    run.start(members[i], *devices.back(), outcomes[static_cast<size_t>(i)].done());
  }
  const size_t slices = run.count * sizeof(int32_t) / kSliceBytes;
  for (size_t s = 0; s < slices / 2; ++s) devices[0]->land({0, s});
  eventually("results of the first slices", [&] {
    for (const auto& device : devices) device->takeFinal();
    return devices[1]->early() > 0 && devices[2]->early() > 0;
  });
  EXPECT_LE(devices[1]->early(), slices / 2);  // the others are not there
  for (size_t s = slices / 2; s < slices; ++s) devices[0]->land({0, s});
  for (Outcome& outcome : outcomes) EXPECT_EQ(outcome.wait("broadcast"), "");
  members.shutdown();
}

TEST(Landings, HeldResultsAreNotFinal) {
  std::vector<std::byte> memory(2 * kSliceBytes);
  int changes = 0;
  Landing landing({{memory.data(), memory.size(), {true, false}}}, kSliceBytes, [&] { ++changes; });
  landing.holdResults();
  landing.willWrite(memory.data(), memory.size());
  landing.begin([] {});
  landing.landed({0, 0});
  landing.wrote(memory.data(), memory.size());
  EXPECT_TRUE(landing.takeFinal().empty());
  EXPECT_EQ(changes, 1);  // it has begun
}

TEST(Landings, ASliceIsFinalWhenItIsThereAndAllItsWritesAreDone) {
  std::vector<std::byte> memory(3 * kSliceBytes - 5);
  int woken = 0;
  Landing landing({{memory.data(), memory.size(), {true, true, false}}}, kSliceBytes, [] {});
  landing.willUse(memory.data() + kSliceBytes, 1);
  landing.willUse(memory.data(), kSliceBytes + 1);
  landing.willWrite(memory.data() + kSliceBytes - 1, 2);  // of two slices
  landing.willWrite(memory.data() + kSliceBytes, 4);
  EXPECT_TRUE(landing.takeOrder().empty());  // not before it has begun
  landing.begin([&] { ++woken; });
  EXPECT_EQ(landing.takeOrder(), (std::vector<Slice>{{0, 1}, {0, 0}}));
  EXPECT_TRUE(landing.takeOrder().empty());
  EXPECT_EQ(landing.takeFinal(), (std::vector<Slice>{{0, 2}}));
  EXPECT_FALSE(landing.has(memory.data() + kSliceBytes - 1, 1));
  EXPECT_TRUE(landing.has(memory.data() + 2 * kSliceBytes, kSliceBytes - 5));
  int elsewhere = 0;
  EXPECT_TRUE(landing.has(&elsewhere, sizeof elsewhere));
  landing.landed({0, 0});
  landing.landed({0, 1});
  EXPECT_EQ(woken, 2);
  EXPECT_TRUE(landing.has(memory.data(), memory.size()));
  EXPECT_TRUE(landing.takeFinal().empty());
  landing.wrote(memory.data() + kSliceBytes, 4);
  EXPECT_TRUE(landing.takeFinal().empty());
  landing.wrote(memory.data() + kSliceBytes - 1, 2);
  EXPECT_EQ(landing.takeFinal(), (std::vector<Slice>{{0, 0}, {0, 1}}));
  landing.end();
  landing.landed({0, 0});
  EXPECT_EQ(woken, 2);
}

// A group that fails while data is missing ends the collective, and what lands later is no matter.
TEST(Landings, AnAbortedCollectiveDoesNotWaitForData) {
  TestRandom random(1903);
  Network network({.size = 3, .cables = ringOf(3)}, random);
  Members members(network, 1, allRanks(3), 1, random);
  const Case run{CallName::kAllReduce, 3, 30000, 0};
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Outcome> outcomes(3);
  for (int i = 0; i < 3; ++i) {
    devices.push_back(run.device(i));
    run.start(members[i], *devices.back(), outcomes[static_cast<size_t>(i)].done());
  }
  members[1].abort("enough");
  for (Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.wait("all_reduce").find("enough"), std::string::npos);
  }
  for (const auto& device : devices) device->land({0, 0});
  members.shutdown();
  for (const auto& device : devices) device->land({0, 1});
}

TEST(Landings, ACollectiveWhoseDataDoesNotComeReachesItsLimit) {
  TestRandom random(1904);
  Network network({.size = 2, .cables = lineOf(2)}, random);
  Members members(network, 1, allRanks(2), 1, random);
  const Case run{CallName::kAllReduce, 2, 30000, 0};
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Outcome> outcomes(2);
  for (int i = 0; i < 2; ++i) {
    Device& device = *devices.emplace_back(run.device(i));
    CallTerms terms{std::chrono::milliseconds(50)};
    terms.landing = device.landing;
    members[i].allReduce(device.host(0), run.count, DataType::kInt32, ReduceOp::kSum, terms,
                         outcomes[static_cast<size_t>(i)].done());
  }
  for (Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.wait("all_reduce").find("Timed out after 50 ms"), std::string::npos);
  }
  members.shutdown();
}

}  // namespace
}  // namespace topoopt
