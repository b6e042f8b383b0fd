// Who reads whose memory, and how members find out which way of copying is fastest.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "collectives/memory/copy_trial.h"
#include "collectives/memory/peer_memory.h"

namespace topoopt {
namespace {

// Pages full of zeros that processes share.
class SharedPages {
 public:
  explicit SharedPages(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~SharedPages() { munmap(data_, bytes_); }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const size_t bytes_;
  void* const data_;
};

TEST(PeerMemory, IsReachedByThoseThatMayAndAreThere) {
  const SharedPages table(PeerMemory::bytesFor(3));
  const PeerMemory first(table.data(), 0, 3, true);
  EXPECT_EQ(first.reaches(1), std::nullopt);
  const PeerMemory second(table.data(), 1, 3, true);
  EXPECT_EQ(first.reaches(1), true);
  EXPECT_EQ(second.reaches(0), true);
  second.publishVerdict();  // before the third is there
  EXPECT_FALSE(first.allReachAll());
  const PeerMemory third(table.data(), 2, 3, false);
  EXPECT_EQ(first.reaches(2), false);
  EXPECT_EQ(third.reaches(0), false);
  for (const PeerMemory* peers : {&first, &second, &third}) peers->publishVerdict();
  EXPECT_FALSE(first.allReachAll());
}

TEST(PeerMemory, AllReachAllWhenEachHasFoundThatItDoes) {
  const SharedPages table(PeerMemory::bytesFor(2));
  const PeerMemory first(table.data(), 0, 2, true);
  const PeerMemory second(table.data(), 1, 2, true);
  first.publishVerdict();
  EXPECT_FALSE(second.allReachAll());
  second.publishVerdict();
  EXPECT_TRUE(first.allReachAll());
  EXPECT_TRUE(second.allReachAll());
}

// A process that another one reads, until it is dismissed.
class Child {
 public:
  explicit Child(std::byte* table) : bytes_(1000), pipe_{-1, -1}, ready_{-1, -1} {
    if (pipe(pipe_) != 0 || pipe(ready_) != 0) throw std::runtime_error("pipe");
    process_ = fork();
    if (process_ == 0) {
      std::fill(bytes_.begin(), bytes_.end(), std::byte{42});
      const PeerMemory own(table, 1, 2, true);
      char word = 'r';
      const bool told = ::write(ready_[1], &word, 1) == 1 && ::read(pipe_[0], &word, 1) == 1;
      _exit(told ? 0 : 1);
    }
    char word = 0;
    EXPECT_EQ(::read(ready_[0], &word, 1), 1);
  }
  ~Child() {
    for (const int fd : {pipe_[0], pipe_[1], ready_[0], ready_[1]}) close(fd);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // At the same address in both processes.
  const std::vector<std::byte>& bytes() const { return bytes_; }
  // Until it is reaped it is a process without memory.
  void end() {
    EXPECT_EQ(::write(pipe_[1], "e", 1), 1);
    siginfo_t info;
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOWAIT), 0);
  }
  void reap() const { EXPECT_EQ(waitpid(process_, nullptr, 0), process_); }

 private:
  std::vector<std::byte> bytes_;
  int pipe_[2];
  int ready_[2];
  pid_t process_ = -1;
};

TEST(PeerMemory, IsThatOfAnotherProcessAsLongAsItLives) {
  const SharedPages table(PeerMemory::bytesFor(2));
  Child child(table.data());
  const PeerMemory own(table.data(), 0, 2, true);
  ASSERT_EQ(own.reaches(1), true);
  const auto address = reinterpret_cast<uint64_t>(child.bytes().data());
  std::vector<std::byte> found(child.bytes().size());
  EXPECT_TRUE(own.read(1, address, found.data(), found.size()));
  EXPECT_EQ(found, std::vector<std::byte>(found.size(), std::byte{42}));
  EXPECT_FALSE(own.read(1, 8, found.data(), found.size())) << "no memory of it";
  child.end();
  EXPECT_FALSE(own.read(1, address, found.data(), found.size())) << "a process that has ended";
  child.reap();
  EXPECT_FALSE(own.read(1, address, found.data(), found.size())) << "no process";
}

TEST(AddressForOthers, IsNoneOfWhatOthersCannotRead) {
  const std::vector<std::byte> bytes(10'000);
  EXPECT_EQ(addressForOthers(bytes.data(), bytes.size()), reinterpret_cast<uint64_t>(bytes.data()));
  const SharedPages pages(3 * 4096);
  ASSERT_EQ(mprotect(pages.data() + 2 * size_t{4096}, 4096, PROT_NONE), 0);
  EXPECT_NE(addressForOthers(pages.data(), 2 * size_t{4096}), 0U);
  EXPECT_EQ(addressForOthers(pages.data(), 3 * size_t{4096}), 0U);
}

class Trial : public testing::Test {
 protected:
  void SetUp() override { setKnownCopyWays({}); }
  void TearDown() override { setKnownCopyWays(before_); }

  const CopyWays before_ = knownCopyWays();
  const SharedPages table_{PeerMemory::bytesFor(2)};
  const SharedPages area_{CopyTrial::bytesFor(2)};
  const PeerMemory peers_[2]{{table_.data(), 0, 2, true}, {table_.data(), 1, 2, true}};
};

TEST_F(Trial, OfTwoMembersFindsTheSameForBoth) {
  const CopyTrial trials[2]{{area_.data(), 0, 2}, {area_.data(), 1, 2}};
  trials[0].run(peers_[0], 0);  // alone, at first
  EXPECT_FALSE(trials[0].result().measured);
  for (uint32_t attempt = 1; attempt < 1000 && !trials[0].result().measured; ++attempt) {
    std::thread second([&] { trials[1].run(peers_[1], attempt); });
    trials[0].run(peers_[0], attempt);
    second.join();
    ASSERT_EQ(trials[0].result(), trials[1].result());
  }
  EXPECT_TRUE(trials[0].result().measured);
  trials[0].adopt();
  EXPECT_EQ(knownCopyWays(), trials[0].result());
}

TEST_F(Trial, OfOneMemberAloneEndsAndFindsNothing) {
  for (int member = 0; member < 2; ++member) {
    const SharedPages area(CopyTrial::bytesFor(2));
    const CopyTrial trial(area.data(), member, 2);
    trial.run(peers_[member], 0);
    trial.adopt();
    EXPECT_FALSE(trial.result().measured);
    EXPECT_FALSE(knownCopyWays().measured);
  }
}

TEST_F(Trial, IsNotHeldWhereAMemberKnowsItsResult) {
  const CopyTrial first(area_.data(), 0, 2);
  constexpr CopyWays kKnown{.measured = true, .streams = false, .pulls = false};
  setKnownCopyWays(kKnown);
  const CopyTrial second(area_.data(), 1, 2);
  for (const CopyTrial* trial : {&first, &second}) {
    trial->run(peers_[0], 0);  // alone: there is nobody to wait for
    EXPECT_EQ(trial->result(), kKnown);
  }
}

}  // namespace
}  // namespace topoopt
