// Messages in shared memory: between threads that wait and the reactor, with rings that are full,
// and how they end.

#include "collectives/memory/local_messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "collectives/memory/shared_words.h"
#include "support/group_steps.h"
#include "support/network.h"
#include "support/traffic.h"

namespace topoopt {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kMoreThanARing = 900 << 10;

// One message, at both of its ends.
struct Message {
  Message(size_t bytes, int tag, TestRandom& random)
      : tag(tag), sent(randomBytes(bytes, random)), received(bytes) {}

  int tag;
  Bytes sent;
  Bytes received;
  Outcome sending;
  Outcome receiving;
};

class MessagesInMemory : public testing::Test {
 protected:
  Message& add(size_t bytes, int tag) { return messages_.emplace_back(bytes, tag, random_); }
  void send(Message& message, int from, bool waits = false) {
    members_[from].send({message.sent.data(), message.sent.size()}, 1 - from, message.tag,
                        {kNoHurry, waits}, message.sending.done());
  }
  void receive(Message& message, int at, bool waits = false) {
    members_[at].receive({message.received.data(), message.received.size()}, 1 - at, message.tag,
                         {kNoHurry, waits}, message.receiving.done());
  }
  // As a thread does that waits for the operation.
  std::string driven(int member, Outcome& outcome) {
    members_[member].await([&] { return outcome.over(); }, std::nullopt);
    return outcome.wait("a message that a thread drives");
  }
  void checkReceived() {
    for (Message& message : messages_) {
      ASSERT_EQ(message.sending.wait("send"), "");
      ASSERT_EQ(message.receiving.wait("receive"), "");
      ASSERT_EQ(message.received, message.sent) << "tag " << message.tag;
    }
  }

  TestRandom random_{2301};
  std::deque<Message> messages_;
  Network network_{{.size = 2, .cables = completeOf(2)}, random_};
  Members members_{network_, 1, {0, 1}, 1, random_, true};
};

TEST(CopyToOthers, CopiesEveryByteAndNoOther) {
  constexpr size_t kRoom = 16 << 10;
  constexpr std::byte kUntouched{0xa5};
  TestRandom random(2302);
  const Bytes from = randomBytes(kRoom, random);
  for (const size_t bytes : {0, 1, 4095, 4096, 4097, 4159, 4160, 9000}) {
    for (const size_t offset : {0, 1, 16, 63, 64}) {
      alignas(16) std::array<std::byte, kRoom> to;
      to.fill(kUntouched);
      copyToOthers(to.data() + 16, from.data() + offset, bytes,
                   offset == 64 ? Stores::kPlain : Stores::kStreaming);
      const Bytes copied(to.begin() + 16, to.begin() + 16 + static_cast<ptrdiff_t>(bytes));
      const auto first = from.begin() + static_cast<ptrdiff_t>(offset);
      EXPECT_EQ(copied, Bytes(first, first + static_cast<ptrdiff_t>(bytes))) << bytes;
      EXPECT_EQ(std::count(to.begin(), to.begin() + 16, kUntouched), 16);
      EXPECT_EQ(to[16 + bytes], kUntouched) << bytes;
    }
  }
}

TEST_F(MessagesInMemory, AreKeptWhereNobodyReceivesThemAndNobodyWaits) {
  for (int tag = 0; tag < 3; ++tag) send(add(kMoreThanARing, tag), 0);
  for (Message& message : messages_) EXPECT_EQ(message.sending.wait("send"), "");
  for (const int tag : {2, 0, 1}) receive(messages_[static_cast<size_t>(tag)], 1);
  checkReceived();
}

TEST_F(MessagesInMemory, LongOnesWaitForTheirReceiveAndOthersDoNot) {
  const size_t early = network_.at(0)->limits().early_peer;
  send(add(early + 1, 0), 0);
  send(add(100, 1), 0);
  receive(messages_[1], 1);
  EXPECT_EQ(messages_[1].receiving.wait("the short one"), "");
  EXPECT_FALSE(messages_[0].sending.over());
  receive(messages_[0], 1);
  checkReceived();
}

// More than is kept aside, received in the opposite order.
TEST_F(MessagesInMemory, MoreThanMayBeKeptAreAnnounced) {
  const size_t bytes = network_.at(0)->limits().early_peer / 5;
  for (int tag = 0; tag < 6; ++tag) send(add(bytes, tag), 0);
  for (int tag = 5; tag >= 0; --tag) receive(messages_[static_cast<size_t>(tag)], 1);
  checkReceived();
}

TEST_F(MessagesInMemory, BothMayBlockInSendBeforeTheyReceive) {
  for (const int tag : {0, 1}) add(kMoreThanARing, tag);
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      Message& own = messages_[static_cast<size_t>(rank)];
      Message& theirs = messages_[static_cast<size_t>(1 - rank)];
      send(own, rank, true);
      EXPECT_EQ(driven(rank, own.sending), "");
      receive(theirs, rank, true);
      EXPECT_EQ(driven(rank, theirs.receiving), "");
    });
  }
  for (std::thread& thread : threads) thread.join();
  checkReceived();
}

// Of each tag in order, whoever moves them: callers, threads that wait, or the reactor.
TEST_F(MessagesInMemory, KeepTheirOrderWhoeverMovesThem) {
  const size_t count = 2 * partOf(120);
  for (size_t i = 0; i < count; ++i) {
    add(random_.size(random_.chance(0.2) ? kMoreThanARing : 3000),
        static_cast<int>(random_.between(0, 2)));
  }
  std::vector<std::vector<bool>> waits(2, std::vector<bool>(count));
  for (auto& list : waits) {
    for (size_t i = 0; i < count; ++i) list[i] = random_.chance(0.4);
  }
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      for (size_t i = 0; i < count; ++i) {
        const bool sends = static_cast<int>(i % 2) == rank;
        Message& message = messages_[i];
        sends ? send(message, rank, waits[rank][i]) : receive(message, rank, waits[rank][i]);
        if (waits[rank][i]) driven(rank, sends ? message.sending : message.receiving);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  checkReceived();
}

// Its callers said that they would wait, and do not; before it, ticks had nothing to take over.
TEST_F(MessagesInMemory, IsTakenOverWhereNobodyWaitsAfterManyThatNeededNoTick) {
  for (int i = 0; i < 100; ++i) {
    Message& message = add(8, 0);
    send(message, 0, true);
    receive(message, 1, true);
  }
  Message& last = add(kMoreThanARing, 0);
  send(last, 0, true);
  receive(last, 1, true);
  checkReceived();
}

TEST_F(MessagesInMemory, ATimeoutNamesTheOtherEndAlsoToAThreadThatDrives) {
  Message& message = add(8, 3);
  members_[0].receive({message.received.data(), 8}, 1, 3, {std::chrono::milliseconds(50), true},
                      message.receiving.done());
  const std::string why = driven(0, message.receiving);
  EXPECT_TRUE(
      why.starts_with("TimeoutError: receive from rank 1 in group test 1: Timed out after "
                      "50 ms: rank 1 is in no operation of this group"))
      << why;
}

TEST_F(MessagesInMemory, AnAbortFreesTheMemoryOfOnesInTheMiddle) {
  const size_t early = network_.at(0)->limits().early_peer;
  Message& sent = add(early + 1, 0);  // waits for its receive
  Message& received = add(8, 1);
  send(sent, 0);
  receive(received, 0, true);
  std::string driver;
  std::thread thread([&] { driver = driven(0, received.receiving); });
  members_[1].abort("enough");
  thread.join();
  EXPECT_EQ(driver, "PeerLostError: rank 1 failed: enough");
  EXPECT_EQ(sent.sending.wait("send"), "PeerLostError: rank 1 failed: enough");
  Bytes().swap(sent.sent);
  send(add(8, 2), 0);
  EXPECT_EQ(messages_.back().sending.wait("a later send"), "PeerLostError: rank 1 failed: enough");
}

TEST_F(MessagesInMemory, TheDeathOfAPeerWakesAThreadThatSleeps) {
  Message& message = add(8, 0);
  receive(message, 0, true);
  std::thread thread([&] {
    EXPECT_TRUE(driven(0, message.receiving).starts_with("PeerLostError: lost the link"));
  });
  network_.cut(0);
  thread.join();
}

// What a rank has sent is there when it has left; more does not come.
TEST_F(MessagesInMemory, CanBeReceivedFromARankThatHasLeft) {
  Message& sent = add(3000, 0);
  send(sent, 1);
  EXPECT_EQ(sent.sending.wait("send"), "");
  members_.shutdownOn(1);
  std::thread leaving([&] { network_.at(1)->leave(kNoHurry); });
  Message& missing = add(8, 1);
  receive(sent, 0);
  EXPECT_EQ(sent.receiving.wait("receive"), "");
  EXPECT_EQ(sent.received, sent.sent);
  receive(missing, 0);
  EXPECT_NE(missing.receiving.wait("receive").find("rank 1 has left the job"), std::string::npos);
  members_.shutdownOn(0);
  network_.at(0)->leave(kNoHurry);
  leaving.join();
}

TEST_F(MessagesInMemory, SentToAGroupThatIsShutDownAreLost) {
  const size_t early = network_.at(0)->limits().early_peer;
  send(add(early + 1, 0), 0);
  members_.shutdownOn(1);
  EXPECT_EQ(messages_[0].sending.wait("send"), "");
}

}  // namespace
}  // namespace topoopt
