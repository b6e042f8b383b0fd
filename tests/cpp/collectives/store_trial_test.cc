// How members find out which stores are faster for what others read next.

#include "collectives/memory/store_trial.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>

namespace topoopt {
namespace {

// Of two members, who know nothing at first.
class StoreTrials : public testing::Test {
 protected:
  void SetUp() override { knownStores() = Stores::kUnknown; }
  void TearDown() override {
    knownStores() = before_;
    munmap(memory_, StoreTrial::bytes());
  }
  std::byte* memory() const { return static_cast<std::byte*>(memory_); }

  const Stores before_ = knownStores();
  void* const memory_ =
      mmap(nullptr, StoreTrial::bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
};

TEST_F(StoreTrials, OfTwoMembersFindTheSameForBothAlsoAfterOneThatFoundNothing) {
  if (!kHasStreamingStores) GTEST_SKIP() << "one kind of stores on this processor: no trials";
  const StoreTrial trials[2]{{memory(), 0, 2}, {memory(), 1, 2}};
  trials[0].run(0);  // alone
  ASSERT_EQ(trials[0].result(), Stores::kUnknown);
  // On a busy processor there may be no time for the first ones.
  for (uint32_t attempt = 1; attempt < 1000 && trials[0].result() == Stores::kUnknown; ++attempt) {
    std::thread second([&] { trials[1].run(attempt); });
    trials[0].run(attempt);
    second.join();
    ASSERT_EQ(trials[0].result(), trials[1].result());
  }
  EXPECT_NE(trials[0].result(), Stores::kUnknown);
  EXPECT_EQ(knownStores(), Stores::kUnknown);
  trials[1].adopt();
  EXPECT_EQ(knownStores(), trials[0].result());
}

TEST_F(StoreTrials, OfTheReaderAloneEndAndFindNothing) {
  const StoreTrial trial(memory(), 1, 2);
  trial.run(0);
  trial.adopt();
  EXPECT_EQ(trial.result(), Stores::kUnknown);
  EXPECT_EQ(knownStores(), Stores::kUnknown);
}

TEST_F(StoreTrials, AreNotHeldWhereAMemberKnowsTheResult) {
  const StoreTrial first(memory(), 0, 2);
  knownStores() = Stores::kPlain;
  const StoreTrial second(memory(), 1, 2);
  for (const StoreTrial* trial : {&first, &second}) {
    trial->run(0);  // alone: there is nobody to wait for
    EXPECT_EQ(trial->result(), Stores::kPlain);
  }
}

}  // namespace
}  // namespace topoopt
