// What some kinds of links do, and others do not.

#include <optional>
#include <string>

#include "support/link_ends.h"
#include "transport/descriptor.h"
#include "transport/endpoint/endpoint.h"

namespace topoopt {
namespace {

// Frames to a neighbour are as long as suits the rate of the link.
TEST(SocketLinks, OnlyFastOnesTakeTheLongestFrames) {
  for (const bool fast : {false, true}) {
    const auto [near_fd, far_fd] = fast ? fastPair() : connectedPair();
    End near(0, {.link = {0, 0, 1, 0}, .fd = near_fd});
    End far(1, {.link = {1, 0, 0, 0}, .fd = far_fd});
    near.on([&](Link& link) {
      EXPECT_EQ(link.mostPayload(), fast ? kMaxPayloadBytes : kNeighbourPayloadBytes);
    });
  }
}

// Those over loopback are copied all the same.
TEST(SocketLinks, SendsWithoutCopyEndWhereTheKernelCopies) {
  if (!kernelSendsWithoutCopy()) GTEST_SKIP() << "no sends without copy (SO_ZEROCOPY)";
  const auto [near_fd, far_fd] = fastPair();
  End near(0, {.link = {0, 0, 1, 0}, .fd = near_fd, .zero_copy = ZeroCopy::kOn});
  End far(1, {.link = {1, 0, 0, 0}, .fd = far_fd, .zero_copy = ZeroCopy::kOn});
  const std::vector<std::byte> data(kMaxPayloadBytes, std::byte{7});
  uint64_t copied = 0;
  for (uint64_t round = 0; round < 6; ++round) {
    Outcome sent;
    near.on([&](Link& link) {
      const auto progress =
          std::make_shared<SendProgress>(SendProgress{4 * data.size(), sent.done()});
      for (uint64_t i = 0; i < 4; ++i) link.send(End::frame(0, 0, 4 * round + i, data, progress));
    });
    ASSERT_EQ(sent.wait("four frames of a message"), "");
    const LinkCounters counters = near.counters();
    EXPECT_EQ(counters.zero_copy_bytes, 0u);
    if (round == 2) copied = counters.copied_bytes;  // all that there was to find out is known
  }
  EXPECT_GT(copied, 0u);
  EXPECT_EQ(near.counters().copied_bytes, copied);
  for (const Frame& frame : far.waitForFrames(24)) EXPECT_TRUE(sameBytes(frame.payload, data));
}

// ---- links of cables ---------------------------------------------------------------------------

// What a slow cable is known by (rate_watch.h).
TEST(CableLinks, TheSystemCountsWhatIsAcknowledged) {
  if (!kernelCountsConnections()) GTEST_SKIP() << "no counters of connections (TCP_INFO)";
  for (const std::string& key : {std::string(), std::string(TlsSession::kKeyBytes, 'k')}) {
    if (!key.empty() && tlsLibrary().empty()) GTEST_SKIP() << "a build without TLS";
    const auto [near_fd, far_fd] = connectedPair();
    End near(0, {.link = {0, 0, 1, 0}, .fd = near_fd, .cable = 0, .tls_key = key});
    End far(1, {.link = {1, 0, 0, 0}, .fd = far_fd, .cable = 0, .tls_key = key});
    const std::vector<std::byte> data(kMaxPayloadBytes);
    uint64_t sent = 0;
    std::optional<SendProgressCounters> counted;
    // The system's clock of this ticks every few milliseconds: what is sent between two ticks takes
    // no time.
    eventually("the connection was busy, and all is acknowledged", [&] {
      near.on([&](Link& link) {
        counted = link.sendProgress();
        if (!counted || counted->busy.count() == 0) {
          link.send(End::frame(0, 1, sent++, data));
        }
      });
      return counted && counted->busy.count() > 0 &&
             counted->acknowledged_bytes >= sent * data.size();
    });
    EXPECT_EQ(far.waitForFrames(sent).size(), sent);
  }
}

TEST(CableLinks, OneThatIsLostKeepsWhatIsSent) {
  const std::string text(sizeof(FrameHeader), 'x');  // neither a frame nor TLS
  for (const std::string& key : {std::string(), std::string(TlsSession::kKeyBytes, 'k')}) {
    if (!key.empty() && tlsLibrary().empty()) GTEST_SKIP() << "a build without TLS";
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    const Descriptor far(fds[1]);
    End near(0, {.link = {0, 0, 1, 0}, .fd = fds[0], .cable = 0, .tls_key = key});
    ASSERT_EQ(send(far.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    EXPECT_NE(near.waitForLoss().find(key.empty() ? "not a frame" : "TLS: "), std::string::npos);
    const std::vector<std::byte> data(100);
    near.on([&](Link& link) { link.send(End::frame(0, 1, 0, data)); });
    near.on([](Link& link) {  // after the turn that the frame has asked for
      link.takeKept();
      EXPECT_EQ(link.takeUnwritten().size(), 1u);
    });
  }
}

// ---- shared memory alone -----------------------------------------------------------------------

TEST(ShmLinks, AnEndThatPassesNoMemoryIsRefused) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  End end(1, {.link = {1, -1, 0, -1}, .fd = fds[0], .kind = LinkKind::kSharedMemory});
  ASSERT_EQ(::send(fds[1], "hello", 5, MSG_NOSIGNAL), 5);
  EXPECT_EQ(end.waitForLoss(), "received something that is not the memory to share");
  ::close(fds[1]);
}

TEST(ShmLinks, ASimplexLinkIsRefused) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  EndpointConfig config;
  config.size = 2;
  config.links = {
      {.link = {1, -1, 0, -1}, .fd = fds[0], .sends = false, .kind = LinkKind::kSharedMemory}};
  EXPECT_THROW(Endpoint{config}, std::invalid_argument);
  ::close(fds[1]);
}

}  // namespace
}  // namespace topoopt
