// Collectives for which circuits move: what a group does between its members and those who move
// them. The network of these tests has a cable between any two, and nothing is moved in it.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "collectives/group/circuit_client.h"
#include "support/group_steps.h"
#include "support/network.h"

namespace topoopt {
namespace {

constexpr int kServers = 4;
constexpr uint32_t kChannel = 7;
constexpr const char* kStay = "stay";
const std::vector<int> kNumbers = {10, 11, 12, 13};  // of the ranks

// Two shifts, by 1 and by 3. Data for the member after the next is relayed on the first, in two
// parts.
std::string schedule() {
  std::vector<std::vector<CircuitHop>> program(2);
  for (int i = 0; i < kServers; ++i) {
    const auto on = [](int member) { return member % kServers; };
    program[0].push_back({i, on(i + 1), i, on(i + 1)});
    for (const int part : {0, 1}) program[0].push_back({i, on(i + 1), i, on(i + 2), part});
    program[1].push_back({i, on(i + 3), i, on(i + 3)});
  }
  for (int i = 0; i < kServers; ++i) {
    for (const int part : {0, 1}) {
      program[0].push_back({(i + 1) % kServers, (i + 2) % kServers, i, (i + 2) % kServers, part});
    }
  }
  std::string text = "schedule 1";
  for (const auto& hops : program) {
    text += " " + std::to_string(hops.size());
    for (const CircuitHop& hop : hops) {
      for (const int value : {hop.sender, hop.receiver, hop.source, hop.target, hop.part}) {
        text += " " + std::to_string(value);
      }
    }
  }
  return text + "\n";
}

// An AllReduce on two topologies: blocks are added around the ring, and sums come back.
std::string blocks() {
  std::string text = "blocks 2 1 " + std::to_string(kServers);
  for (const int shift : {1, 3}) {
    text += " " + std::to_string(kServers * (kServers - 1));
    for (int step = 1; step < kServers; ++step) {
      for (int i = 0; i < kServers; ++i) {
        // Block b leaves member b + 1, is complete at member b, and goes back.
        const int block = shift == 1 ? (i + kServers - step) % kServers : (i + step - 1) % kServers;
        text += " " + std::to_string(i) + " " + std::to_string((i + shift) % kServers) + " " +
                std::to_string(block) + " 0 " + (shift == 1 ? "1" : "0");
      }
    }
  }
  return text + "\n";
}

// Who moves the circuits, in this test: says of each collective what `answer` does, in its order.
// "" is moved, "stay", "stop N" stops at topology N; "cut N" says that it is there and at once,
// while chunks travel, that it is lost; "ignore" never answers.
class Mover {
 public:
  explicit Mover(std::vector<std::string> answers) : answers_(std::move(answers)) {
    for (int member = 0; member < kServers; ++member) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
      theirs_.push_back(ends[0]);
      own_.emplace_back(ends[1]);
    }
    begun_.resize(kServers);
    thread_ = std::thread([this] { serve(); });
  }

  ~Mover() {
    stopping_ = true;
    thread_.join();
  }

  int takeEnd(int member) { return theirs_[member]; }

  void hangUp() { hang_up_ = true; }
  std::vector<std::string> heard() {
    std::lock_guard lock(mutex_);
    return heard_;
  }
  size_t heard(const std::string& what) {
    const auto lines = heard();
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.ends_with(" " + what); });
  }
  // The last words of all requests of a member.
  std::vector<std::string> used(int member) {
    std::lock_guard lock(mutex_);
    return used_[member];
  }
  void tell(int member, const std::string& line) {
    const std::string text = line + "\n";
    ASSERT_EQ(::send(own_[member].get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

 private:
  void serve() {
    while (!stopping_) {
      if (hang_up_.exchange(false)) own_.clear();
      std::vector<pollfd> fds;
      for (const Descriptor& own : own_) fds.push_back({own.get(), POLLIN, 0});
      if (fds.empty()) return;
      ::poll(fds.data(), fds.size(), 5);
      for (size_t member = 0; member < fds.size(); ++member) {
        if (fds[member].revents != 0) read(static_cast<int>(member));
      }
    }
  }

  void read(int member) {
    char data[4096];
    const ssize_t count = ::recv(own_[member].get(), data, sizeof data, MSG_DONTWAIT);
    if (count <= 0) return;
    std::string& begun = begun_[member];
    begun.append(data, static_cast<size_t>(count));
    size_t end;
    while ((end = begun.find('\n')) != std::string::npos) {
      onLine(member, begun.substr(0, end));
      begun.erase(0, end + 1);
    }
  }

  void onLine(int member, const std::string& line) {
    std::istringstream words(line);
    std::string what, channel, number, rest;
    words >> what >> channel >> number;
    std::getline(words >> std::ws, rest);
    const std::string name = channel + " " + number;
    {
      std::lock_guard lock(mutex_);
      heard_.push_back(std::to_string(member) + " " + what);
    }
    const bool asks = what == "ask" || what == "collective";
    if (asks) {
      std::lock_guard lock(mutex_);
      used_[member].push_back(line.substr(line.rfind(' ') + 1));
      std::istringstream request(rest);
      std::string ranks, servers, row;
      request >> ranks >> servers >> row;
      EXPECT_EQ(ranks, "10,11,12,13");
      EXPECT_EQ(servers, "0,1,2,3");
      std::replace(row.begin(), row.end(), ',', ' ');
      rows_[member] = row;
    }
    if (what == "ready") said_[what + " " + name + " " + rest].insert(member);
    if (asks && rows_.size() == kServers) return choose(name, what == "collective");
    if (what == "ready" && said_[what + " " + name + " " + rest].size() == kServers) {
      if (answer_ == "stop " + rest) return stop(name, "the circuits stay dark");
      std::string moved = "moved " + name + " " + rest + "\n";
      if (rest == "2") moved += "free\n";  // the plan's circuits, after two topologies
      if (answer_ == "cut " + rest) return stop(name, "the circuits are lost", moved);
      notify(moved);
    }
  }

  void stop(const std::string& name, const std::string& why, const std::string& before = "") {
    ++channel_;
    notify(before + "stop " + name + " " + why + "\nfree\n");
  }

  void choose(const std::string& name, bool collective) {
    answer_ = next_ < answers_.size() ? answers_[next_++] : "";
    std::string bytes;
    for (const auto& [member, row] : rows_) bytes += " " + row;
    rows_.clear();
    if (answer_ == "ignore") return;
    if (answer_ == kStay) return notify("stay " + name + "\n");
    notify("hold 0,1,2,3\n");
    if (collective) {
      return notify(blocks() + "move " + name + " 2 " + std::to_string(channel_) + "\n");
    }
    notify((std::exchange(sent_, true) ? "" : schedule()) + "move " + name + " 1 " +
           std::to_string(channel_) + bytes + "\n");
  }

  void notify(const std::string& text) {
    for (const Descriptor& own : own_) {
      [[maybe_unused]] const ssize_t sent =
          ::send(own.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  }

  const std::vector<std::string> answers_;
  size_t next_ = 0;
  uint32_t channel_ = kFirstCircuitChannel;  // of the chunks
  std::string answer_;
  bool sent_ = false;
  std::vector<int> theirs_;
  std::vector<Descriptor> own_;
  std::vector<std::string> begun_;
  std::map<int, std::string> rows_;
  std::map<std::string, std::set<int>> said_;
  std::mutex mutex_;
  std::vector<std::string> heard_;
  std::map<int, std::vector<std::string>> used_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> hang_up_{false};
  std::thread thread_;
};

class Circuits : public testing::Test {
 protected:
  void open(std::vector<std::string> answers, std::chrono::milliseconds limit = kNoHurry) {
    limit_ = limit;
    mover_ = std::make_unique<Mover>(std::move(answers));
    network_ = std::make_unique<Network>(
        NetworkOptions{.size = kServers, .cables = completeOf(kServers), .recovers = true},
        random_);
    std::vector<int> ranks(kServers);
    std::iota(ranks.begin(), ranks.end(), 0);
    for (int member = 0; member < kServers; ++member) {
      GroupConfig config;
      config.name = "test";
      config.channel = kChannel;
      config.rank = member;
      config.ranks = ranks;
      config.servers = ranks;
      config.rings = {{ranks, 1.0}};
      config.circuits =
          std::make_shared<CircuitClient>(network_->at(member), mover_->takeEnd(member),
                                          CircuitClient::Requested{true, least_s_}, kNumbers);
      clients_.push_back(config.circuits);
      groups_.push_back(Group::open(network_->at(member), config));
    }
  }

  void TearDown() override {
    for (const auto& group : groups_) group->shutdown();
    groups_.clear();
    clients_.clear();
    network_.reset();
  }

  // AllReduces of `count` floats on all members, each of which has its number.
  std::vector<Outcome> addUp(std::vector<std::vector<float>>& data, size_t count) {
    std::vector<Outcome> outcomes(kServers);
    data.clear();
    for (int i = 0; i < kServers; ++i) data.emplace_back(count, static_cast<float>(i));
    for (int i = 0; i < kServers; ++i) {
      groups_[i]->allReduce(data[i].data(), count, DataType::kFloat32, ReduceOp::kSum,
                            CallTerms(limit_), outcomes[i].done());
    }
    return outcomes;
  }

  size_t requests() { return mover_->heard("collective"); }

  // Circuits lead from 0 to 1 and from 2 to 3 only, and back.
  void moveApart(const std::string& how = "hold") {
    for (int member = 0; member < kServers; ++member) {
      mover_->tell(member, how + (member < 2 ? " 0,1" : " 2,3"));
      eventually("the circuits move", [&] {
        bool move = false;
        network_->at(member)->reactor().run([&] { move = clients_[member]->circuitsMove(); });
        return move;
      });
    }
  }
  void moveBack() {
    for (int member = 0; member < kServers; ++member) mover_->tell(member, "free");
  }

  Outcome send(int from, int to, int& value) {
    Outcome outcome;
    groups_[from]->send({&value, sizeof value}, to, 0, kNoHurry, outcome.done());
    return outcome;
  }
  Outcome receive(int to, int from, int& value) {
    Outcome outcome;
    groups_[to]->receive({&value, sizeof value}, from, 0, kNoHurry, outcome.done());
    return outcome;
  }

  // Of different sizes, some of them 0.
  static size_t bytesOf(int source, int target) {
    return static_cast<size_t>((source * 7 + target * 3) % 5) * 20'000;
  }
  static std::byte valueOf(int source, int target, int round) {
    return static_cast<std::byte>(source * 37 + target * 11 + round + 1);
  }

  // Starts an all-to-all on all members; `wrong` is what a member adds to what it expects from
  // member 0.
  std::vector<Outcome> start(int round, const std::map<int, size_t>& wrong = {}) {
    std::vector<Outcome> outcomes(kServers);
    inputs_.resize(round + 1);
    outputs_.resize(round + 1);
    inputs_[round].resize(kServers);
    outputs_[round].resize(kServers);
    for (int member = 0; member < kServers; ++member) {
      std::vector<size_t> sends, receives;
      auto& input = inputs_[round][member];
      for (int other = 0; other < kServers; ++other) {
        sends.push_back(bytesOf(member, other));
        receives.push_back(bytesOf(other, member) +
                           (other == 0 && wrong.contains(member) ? wrong.at(member) : 0));
        input.insert(input.end(), sends.back(), valueOf(member, other, round));
      }
      auto& output = outputs_[round][member];
      output.resize(std::accumulate(receives.begin(), receives.end(), size_t{0}));
      groups_[member]->exchange(CallName::kAllToAllSingle, input.data(), sends, output.data(),
                                receives, CallTerms(limit_), outcomes[member].done());
    }
    return outcomes;
  }

  void expectRight(int round) {
    for (int member = 0; member < kServers; ++member) {
      size_t at = 0;
      for (int other = 0; other < kServers; ++other) {
        for (size_t i = 0; i < bytesOf(other, member) && other != member; ++i) {
          ASSERT_EQ(outputs_[round][member][at + i], valueOf(other, member, round));
        }
        at += bytesOf(other, member);
      }
    }
  }

  void expectAll(std::vector<Outcome> outcomes, const std::string& expected) {
    for (Outcome& outcome : outcomes) {
      const std::string result = outcome.wait("an all-to-all");
      if (expected.empty()) {
        EXPECT_EQ(result, "");
      } else {
        EXPECT_NE(result.find(expected), std::string::npos) << result;
      }
    }
  }

  TestRandom random_{97};
  std::chrono::milliseconds limit_{};
  double least_s_ = std::numeric_limits<double>::infinity();
  std::vector<std::vector<std::vector<std::byte>>> inputs_, outputs_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<Network> network_;
  std::vector<std::shared_ptr<CircuitClient>> clients_;
  std::vector<std::shared_ptr<Group>> groups_;
};

TEST_F(Circuits, MoveForSomeAndStayForOthersWhateverIsCalledMeanwhile) {
  open({"", kStay, "", ""});
  std::vector<std::vector<Outcome>> outcomes;
  std::vector<std::vector<float>> sums(kServers, std::vector<float>(5000, 1.f));
  std::vector<Outcome> summed(kServers);
  for (int round = 0; round < 4; ++round) {
    outcomes.push_back(start(round));
    if (round != 1) continue;
    for (int member = 0; member < kServers; ++member) {
      groups_[member]->allReduce(sums[member].data(), sums[member].size(), DataType::kFloat32,
                                 ReduceOp::kSum, kNoHurry, summed[member].done());
    }
  }
  for (int round = 0; round < 4; ++round) {
    expectAll(outcomes[round], "");
    expectRight(round);
  }
  expectAll(summed, "");
  for (const auto& sum : sums) EXPECT_EQ(sum, std::vector<float>(5000, 4.f));
}

TEST_F(Circuits, ThatStayDarkEndOneAllToAllAndTheGroupGoesOn) {
  for (const char* stop : {"stop 0", "stop 1", "stop 2"}) {
    open({stop, "", kStay});
    auto first = start(0);
    auto second = start(1);
    auto third = start(2);
    expectAll(first, "(operation 0 of group test): the circuits stay dark");
    expectAll(second, "");
    expectRight(1);
    expectAll(third, "");
    expectRight(2);
    TearDown();
  }
}

// Some of its chunks are on the way, others are not yet sent, and none may come to what follows.
TEST_F(Circuits, ThatAreLostWhileChunksTravelEndOneAllToAllAndTheGroupGoesOn) {
  open({"cut 0", "", "cut 1", "cut 0", kStay, ""});
  std::vector<std::vector<Outcome>> outcomes;
  for (int round = 0; round < 6; ++round) outcomes.push_back(start(round));
  for (const int round : {0, 2, 3}) {
    expectAll(outcomes[round],
              "(operation " + std::to_string(round) + " of group test): the circuits are lost");
  }
  for (const int round : {1, 4, 5}) {
    expectAll(outcomes[round], "");
    expectRight(round);
  }
  for (const auto& group : groups_) EXPECT_EQ(group->error(), nullptr);
}

TEST_F(Circuits, MoveForAnAllReduceAndOneThatIsStoppedEndsAlone) {
  least_s_ = 0;
  open({"", "stop 1", "cut 1", kStay, ""});
  for (const std::string expected :
       {"", "the circuits stay dark", "the circuits are lost", "", ""}) {
    std::vector<std::vector<float>> data;
    expectAll(addUp(data, 50'001), expected);
    if (!expected.empty()) continue;
    for (const auto& sum : data) EXPECT_EQ(sum, std::vector<float>(50'001, 6.f));
  }
  EXPECT_EQ(requests(), 5u * kServers);
}

TEST_F(Circuits, AreNotRequestedForWhatIsShortOnThoseOfThePlan) {
  for (const double least_s : {1e-9, 1.0}) {
    least_s_ = least_s;
    open({kStay});
    std::vector<std::vector<float>> data;
    expectAll(addUp(data, 1000), "");
    EXPECT_EQ(requests(), least_s < 1 ? static_cast<size_t>(kServers) : 0u);
    for (const auto& sum : data) EXPECT_EQ(sum, std::vector<float>(1000, 6.f));
    TearDown();
  }
}

TEST_F(Circuits, ThatLeadElsewhereHoldUpCollectivesThatAreNotRequested) {
  open({});
  moveApart();
  std::vector<std::vector<float>> data;
  auto outcomes = addUp(data, 1000);
  eventually("all ask for the plan's circuits",
             [&] { return mover_->heard("restore") == kServers; });
  for (Outcome& outcome : outcomes) EXPECT_FALSE(outcome.over());
  moveBack();
  expectAll(std::move(outcomes), "");
  for (const auto& sum : data) EXPECT_EQ(sum, std::vector<float>(1000, 6.f));
}

TEST_F(Circuits, HoldUpMessagesForOthersUntilTheyLeadThere) {
  open({});
  moveApart();
  int near = 5, far = 6, late = 7, come[3] = {};
  std::vector<Outcome> outcomes;
  outcomes.push_back(send(0, 1, near));
  outcomes.push_back(receive(1, 0, come[0]));
  expectAll(std::exchange(outcomes, {}), "");
  EXPECT_EQ(mover_->heard("restore"), 0u);
  for (int* value : {&far, &late}) outcomes.push_back(send(2, 0, *value));
  outcomes.push_back(receive(0, 2, come[1]));
  eventually("it asks for other circuits", [&] { return mover_->heard("restore") == 2; });
  mover_->tell(2, "hold 0,2");
  outcomes.push_back(receive(0, 2, come[2]));
  expectAll(std::move(outcomes), "");
  EXPECT_EQ(std::vector(come, come + 3), (std::vector{5, 6, 7}));
}

TEST_F(Circuits, AreNotRequestedWhileTheyAreChanged) {
  open({});
  moveApart("wait");
  int value = 5, come = 0;
  std::vector<Outcome> outcomes;
  outcomes.push_back(send(0, 2, value));
  outcomes.push_back(receive(2, 0, come));
  mover_->tell(0, "hold 0,2");
  expectAll(std::move(outcomes), "");
  EXPECT_EQ(come, 5);
  EXPECT_EQ(mover_->heard("restore"), 0u);
}

TEST_F(Circuits, ThatMoveDuringAShortCollectiveAreRequestedBack) {
  open({});
  std::vector<Outcome> outcomes(kServers);
  std::vector<float> data(kServers, 1.f);
  const auto call = [&](int member) {
    groups_[member]->allReduce(&data[member], 1, DataType::kFloat32, ReduceOp::kSum, kNoHurry,
                               outcomes[member].done());
  };
  for (int member = 0; member < kServers - 1; ++member) call(member);
  moveApart();
  eventually("they ask for others", [&] { return mover_->heard("restore") == kServers - 1; });
  moveBack();
  call(kServers - 1);
  expectAll(std::move(outcomes), "");
  EXPECT_EQ(data, std::vector<float>(kServers, 4.f));
}

TEST_F(Circuits, MessagesThatAreHeldUpEndWithTheirGroup) {
  open({});
  moveApart();
  int value = 1;
  Outcome outcome = send(0, 2, value);
  eventually("it asks for other circuits", [&] { return mover_->heard("restore") == 1; });
  groups_[0]->shutdown();
  EXPECT_NE(outcome.wait("a send").find("was shut down"), std::string::npos);
  moveBack();
}

TEST_F(Circuits, RequestsSayWhereEarlierMessagesWent) {
  open({kStay, kStay, kStay});
  std::vector<std::vector<float>> data;
  expectAll(start(0), "");
  expectAll(addUp(data, 10), "");
  expectAll(start(1), "");
  int value = 1, come = 0;
  std::vector<Outcome> outcomes;
  outcomes.push_back(send(0, 2, value));
  outcomes.push_back(receive(2, 0, come));
  expectAll(std::move(outcomes), "");
  expectAll(start(2), "");
  EXPECT_EQ(mover_->used(0), (std::vector<std::string>{"-", "0,1,2,3", "2"}));
  EXPECT_EQ(mover_->used(2), (std::vector<std::string>{"-", "0,1,2,3", "-"}));
}

TEST_F(Circuits, SizesThatDoNotMatchFailTheGroup) {
  open({""});
  expectAll(start(0, {{2, 8}}), "rank 0 sends 20000 uint8, rank 2 receives 20008 uint8");
  EXPECT_NE(groups_[1]->error(), nullptr);
}

TEST_F(Circuits, AnotherCallElsewhereIsFoundBeforeAnythingMoves) {
  open({""});
  std::vector<Outcome> outcomes(kServers);
  std::vector<float> data(kServers, 0.f);
  std::vector<size_t> none(kServers, 0);
  for (int member = 1; member < kServers; ++member) {
    groups_[member]->exchange(CallName::kAllToAll, nullptr, none, nullptr, none,
                              CallTerms(kNoHurry), outcomes[member].done());
  }
  groups_[0]->allReduce(data.data(), 1, DataType::kFloat32, ReduceOp::kSum, kNoHurry,
                        outcomes[0].done());
  expectAll(outcomes, "rank 0 called all_reduce (sum) of 1 float32");
}

TEST_F(Circuits, AMoverThatEndsOrSaysNothingEndsTheCall) {
  open({"ignore"}, limitOf(std::chrono::milliseconds(300)));
  expectAll(start(0), "Timed out after");
  eventually("the members leave", [&] { return mover_->heard("leave") == kServers; });
  TearDown();
  open({"ignore"});
  auto outcomes = start(1);
  mover_->hangUp();
  expectAll(outcomes, "the connection to what moves circuits is lost");
}

}  // namespace
}  // namespace topoopt
