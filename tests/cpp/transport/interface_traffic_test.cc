// What the kernel counts of an interface, in a network namespace of the test's own.

#include "transport/interface_traffic.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <string>
#include <thread>

namespace topoopt {
namespace {

constexpr int kPackets = 20;
constexpr size_t kPayloadBytes = 1000;

// For the calling thread: an interface over which each packet goes that has an address of its net.
bool enterNamespaceWithCable() {
  const char* const commands =
      "ip link add near type veth peer name far && ip addr add 10.0.0.1/24 dev near && "
      "ip link set near up && ip link set far up && "
      "ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev near";
  return unshare(CLONE_NEWNET) == 0 && std::system(commands) == 0;
}

bool sendPackets() {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(0x0a000002);
  to.sin_port = htons(9);
  const std::array<char, kPayloadBytes> payload{};
  for (int i = 0; i < kPackets; ++i) {
    if (sendto(socket.get(), payload.data(), payload.size(), 0,
               reinterpret_cast<const sockaddr*>(&to), sizeof to) < 0) {
      return false;
    }
  }
  return true;
}

std::string counted() {
  if (!enterNamespaceWithCable()) return "no namespace";
  InterfaceReader reader;
  const auto near = static_cast<int>(if_nametoindex("near"));
  const auto far = static_cast<int>(if_nametoindex("far"));
  const auto near_before = reader.read(near), far_before = reader.read(far);
  if (!near_before || !far_before || !sendPackets()) return "nothing counted or sent";
  const auto near_after = reader.read(near), far_after = reader.read(far);
  if (!near_after || !far_after) return "nothing counted any more";
  const uint64_t sent = near_after->sent_bytes - near_before->sent_bytes;
  const uint64_t received = far_after->received_bytes - far_before->received_bytes;
  if (sent < kPackets * kPayloadBytes) return "sent " + std::to_string(sent);
  if (received < kPackets * kPayloadBytes) return "received " + std::to_string(received);
  if (reader.read(far + 1000)) return "an interface that does not exist";
  return "";
}

TEST(InterfaceTraffic, CountsWhatAnyProcessSendsAndWhatArrives) {
  std::string result;
  std::thread([&] { result = counted(); }).join();
  if (result == "no namespace") GTEST_SKIP() << "needs root, and the program ip";
  EXPECT_EQ(result, "");
}

TEST(InterfaceTraffic, AnUnknownInterfaceCountsNothing) { EXPECT_FALSE(InterfaceReader{}.read(0)); }

}  // namespace
}  // namespace topoopt
