// CollNet's communicators over small networks: many operations in flight, and how they fail.

#include "nccl/collnet.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "nccl/wiring.h"
#include "support/network.h"

namespace topoopt {
namespace {

using nccl::BlockWindow;
using nccl::CollComm;
using nccl::CollRequest;

constexpr nccl::TypedReduction kSumOfWords{DataType::kInt32, ReduceOp::kSum};

// One server per rank, in a ring that runs both ways.
nccl::Wiring wiringOf(int servers) {
  nccl::Wiring wiring;
  for (int server = 0; server < servers; ++server) {
    wiring.servers.push_back(server);
    wiring.leaders.push_back(server);
    wiring.cables.push_back({.link = {server, 0, (server + 1) % servers, 1}, .gbps = 2});
  }
  std::vector<int> order = wiring.servers;
  wiring.rings.push_back({order, 0.5});
  std::reverse(order.begin() + 1, order.end());
  wiring.rings.push_back({order, 0.5});
  return wiring;
}

class Communicator {
 public:
  Communicator(Network& network, std::vector<int> ranks, uint32_t channel) {
    const nccl::Wiring wiring = wiringOf(network.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      ends_.push_back(std::make_shared<CollComm>(
          network.at(ranks[i]), nccl::collNetGroup(wiring, ranks, static_cast<int>(i), channel)));
    }
  }
  ~Communicator() {
    for (const auto& end : ends_) end->close();
  }

  int size() const { return static_cast<int>(ends_.size()); }
  CollComm& at(int member) { return *ends_[static_cast<size_t>(member)]; }

  nccl::Result wait(int member, CollRequest* request, int* bytes = nullptr) {
    nccl::Result result = nccl::kSuccess;
    bool done = false;
    eventually("an operation of CollNet", [&] {
      result = at(member).test(*request, done, bytes);
      return done || result != nccl::kSuccess;
    });
    return result;
  }

 private:
  std::vector<std::shared_ptr<CollComm>> ends_;
};

std::vector<int> everyRank(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

struct Started {
  CollRequest* request;
  std::vector<int32_t> in;
  std::vector<int32_t> out;
  int32_t each;  // expected
};

TEST(CollNet, OperationsInFlightGiveTheRightSums) {
  TestRandom random(811);
  Network network({.size = 5, .cables = ringOf(5), .routes = 2, .recovers = true}, random);
  Communicator all(network, everyRank(5), 8);
  Communicator some(network, {3, 0, 2}, 64);
  for (Communicator* comm : {&all, &some}) {
    std::vector<std::vector<Started>> started(static_cast<size_t>(comm->size()));
    for (int step = 0; step < 40; ++step) {
      const size_t count = static_cast<size_t>(random.between(0, 5000));
      const bool in_place = random.chance(0.5);
      for (int member = 0; member < comm->size(); ++member) {
        auto& one = started[static_cast<size_t>(member)].emplace_back();
        one.in.assign(count, step + member);
        one.out.resize(count);
        one.each = comm->size() * step + comm->size() * (comm->size() - 1) / 2;
        if (in_place) one.out = one.in;
        one.request = comm->at(member).allReduce(in_place ? one.out.data() : one.in.data(),
                                                 one.out.data(), count, kSumOfWords);
        ASSERT_NE(one.request, nullptr);
      }
    }
    for (int member = 0; member < comm->size(); ++member) {
      for (const Started& one : started[static_cast<size_t>(member)]) {
        int bytes = -1;
        ASSERT_EQ(comm->wait(member, one.request, &bytes), nccl::kSuccess);
        EXPECT_EQ(static_cast<size_t>(bytes), one.in.size() * sizeof(int32_t));
        EXPECT_EQ(one.out, std::vector<int32_t>(one.in.size(), one.each));
      }
    }
  }
}

TEST(CollNet, TooManyOperationsAreRefusedUntilOneIsTested) {
  TestRandom random(812);
  Network network({.size = 2, .cables = lineOf(2)}, random);
  Communicator comm(network, {0, 1}, 8);
  std::vector<CollRequest*> requests;
  int32_t word = 1;
  for (CollRequest* request;
       (request = comm.at(0).allReduce(&word, &word, 0, kSumOfWords)) != nullptr;) {
    requests.push_back(request);
    comm.wait(1, comm.at(1).allReduce(&word, &word, 0, kSumOfWords));
  }
  EXPECT_EQ(comm.wait(0, requests.front()), nccl::kSuccess);
  EXPECT_NE(comm.at(0).allReduce(&word, &word, 0, kSumOfWords), nullptr);
  comm.wait(1, comm.at(1).allReduce(&word, &word, 0, kSumOfWords));
}

TEST(CollNet, AMemberThatClosesDuringAnOperationFailsTheOthers) {
  TestRandom random(813);
  Network network({.size = 4, .cables = ringOf(4)}, random);
  Communicator comm(network, everyRank(4), 8);
  std::vector<int32_t> data(100);
  ASSERT_NE(comm.at(1).allReduce(data.data(), data.data(), 100, kSumOfWords), nullptr);
  std::vector<int32_t> waiting(100);
  CollRequest* const request =
      comm.at(2).allReduce(waiting.data(), waiting.data(), 100, kSumOfWords);
  comm.at(1).close();
  EXPECT_EQ(comm.wait(2, request), nccl::kRemoteError);
  EXPECT_NE(comm.at(2).why(), "");
}

TEST(CollNet, AWindowHasItsPartOfEveryBlock) {
  EXPECT_EQ((BlockWindow{10, 0, 30}.parts(3)), (std::vector<size_t>{10, 10, 10}));
  EXPECT_EQ((BlockWindow{10, 5, 10}.parts(3)), (std::vector<size_t>{5, 5, 0}));
  EXPECT_EQ((BlockWindow{10, 12, 3}.parts(3)), (std::vector<size_t>{0, 3, 0}));
  EXPECT_EQ((BlockWindow{10, 30, 0}.parts(3)), (std::vector<size_t>{0, 0, 0}));
}

TEST(CollNet, RingsOfSomeServersLeaveTheOthersOut) {
  const GroupConfig group = nccl::collNetGroup(wiringOf(5), {3, 0, 2}, 1, 8);
  EXPECT_EQ(group.servers, (std::vector<int>{3, 0, 2}));
  ASSERT_EQ(group.rings.size(), 2U);
  EXPECT_EQ(group.rings[0].servers, (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(group.rings[1].servers, (std::vector<int>{1, 0, 2}));
  EXPECT_DOUBLE_EQ(group.cost.beta_s_per_byte, 8e-9 / 2);
}

}  // namespace
}  // namespace topoopt
