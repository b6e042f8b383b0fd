// Every pending message is done once, and nothing calls back for one that is not pending.

#include "collectives/group/pending_messages.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/test_limits.h"

namespace topoopt {
namespace {

using std::chrono::milliseconds;

class PendingMessagesTest : public testing::Test {
 protected:
  ~PendingMessagesTest() override { reactor_.stop(); }

  void on(const std::function<void()>& function) { reactor_.run(function); }

  PendingMessages::Message message(const std::string& text, milliseconds limit = {}) {
    return {
        .text = text, .peers = {}, .limit = limit, .done = [this, text](std::exception_ptr error) {
          done_.push_back(text + (error ? " failed" : " done"));
        }};
  }
  uint64_t add(const std::string& text, milliseconds limit = {}) {
    return messages_.add(message(text, limit), [this](uint64_t number) {
      late_.push_back(number);
      late_once_.set_value();
    });
  }

  Reactor reactor_;
  PendingMessages messages_{reactor_};
  std::vector<std::string> done_;
  std::vector<uint64_t> late_;
  std::promise<void> late_once_;
};

TEST_F(PendingMessagesTest, EachIsKnownUntilItIsDone) {
  on([&] {
    const uint64_t first = add("first");
    const uint64_t second = add("second");
    EXPECT_EQ(messages_.find(first)->text, "first");
    messages_.finish(first);
    EXPECT_EQ(messages_.find(first), nullptr);
    EXPECT_EQ(messages_.find(second)->text, "second");
    EXPECT_EQ(done_, (std::vector<std::string>{"first done"}));
    EXPECT_EQ(add("third"), second + 1);
  });
}

TEST_F(PendingMessagesTest, TheFirstAreNamedInTheirOrder) {
  on([&] {
    const uint64_t first = add("first");
    for (const char* text : {"second", "third", "fourth"}) add(text);
    messages_.finish(first);
    EXPECT_EQ(messages_.texts(2), (std::vector<std::string>{"second", "third"}));
    EXPECT_EQ(messages_.texts(9).size(), 3u);
  });
}

TEST_F(PendingMessagesTest, AllFailTogetherAndOneThatACallbackAddsDoesNot) {
  on([&] {
    auto first = message("first");
    first.done = [&](std::exception_ptr) { add("added"); };
    messages_.add(std::move(first), {});
    add("second");
    messages_.failAll(std::make_exception_ptr(std::runtime_error("the link is lost")));
    EXPECT_EQ(done_, (std::vector<std::string>{"second failed"}));
    EXPECT_EQ(messages_.texts(9), (std::vector<std::string>{"added"}));
  });
}

TEST_F(PendingMessagesTest, OneThatIsLateStaysPendingAndOneThatIsDoneIsNeverLate) {
  uint64_t late = 0;
  on([&] {
    messages_.finish(add("finished", milliseconds(1)));
    late = add("late", milliseconds(2));
    add("without a limit");
  });
  const auto limit = late_once_.get_future().wait_for(kWaitLimit);
  ASSERT_EQ(limit, std::future_status::ready);
  on([&] {
    EXPECT_EQ(late_, std::vector<uint64_t>{late});
    ASSERT_NE(messages_.find(late), nullptr);
    EXPECT_EQ(messages_.find(late)->limit, milliseconds(2));
    messages_.finish(late);
    EXPECT_EQ(done_, (std::vector<std::string>{"finished done", "late done"}));
  });
}

}  // namespace
}  // namespace topoopt
