// Interfaces that lose their carrier, in a network namespace of the test's own.

#include "transport/carrier_watch.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>

#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "support/test_limits.h"

namespace topoopt {
namespace {

bool run(const std::string& command) {
  return std::system((command + " 2>/dev/null").c_str()) == 0;
}

// For the calling thread, and those that it starts.
bool enterOwnNamespace() {
  return unshare(CLONE_NEWNET) == 0 && run("ip link add near type veth peer name far") &&
         run("ip link set near up") && run("ip link set far up");
}

// "" if the loss was noticed; else what went wrong.
std::string noticed(const std::string& command) {
  if (!enterOwnNamespace()) return "no namespace";
  Reactor reactor;
  std::unique_ptr<CarrierWatch> watch;
  std::promise<void> lost;
  bool notified = false;
  const int near = static_cast<int>(if_nametoindex("near"));
  reactor.run([&] {
    watch = std::make_unique<CarrierWatch>(reactor, [&](int interface) {
      if (interface == near && !std::exchange(notified, true)) lost.set_value();
    });
  });
  if (!run(command)) return "the command failed: " + command;
  const bool in_time = lost.get_future().wait_for(kWaitLimit) == std::future_status::ready;
  reactor.run([&] { watch.reset(); });
  return in_time ? "" : "not noticed: " + command;
}

TEST(CarrierWatch, NoticesInterfacesThatGoDownLoseTheirCarrierOrVanish) {
  for (const char* command :
       {"ip link set near down", "ip link set far down", "ip link del near"}) {
    std::string result;
    std::thread([&] { result = noticed(command); }).join();
    if (result == "no namespace") GTEST_SKIP() << "needs root, and the program ip";
    EXPECT_EQ(result, "");
  }
}

}  // namespace
}  // namespace topoopt
