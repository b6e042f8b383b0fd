#include "transport/interface_traffic.h"

#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace topoopt {
namespace {

constexpr size_t kAnswerBytes = 16 << 10;  // far more than the kernel reports for an interface

struct LinkRequest {
  nlmsghdr header;
  ifinfomsg link;
};

std::optional<InterfaceTraffic> trafficIn(nlmsghdr* message) {
  if (message->nlmsg_type != RTM_NEWLINK) return std::nullopt;
  auto* const link = static_cast<ifinfomsg*>(NLMSG_DATA(message));
  auto left = static_cast<int>(IFLA_PAYLOAD(message));
  for (rtattr* one = IFLA_RTA(link); RTA_OK(one, left); one = RTA_NEXT(one, left)) {
    if (one->rta_type != IFLA_STATS64) continue;
    rtnl_link_stats64 stats{};
    // Later kernels have more counters.
    std::memcpy(&stats, RTA_DATA(one), std::min<size_t>(sizeof stats, RTA_PAYLOAD(one)));
    return InterfaceTraffic{.sent_bytes = stats.tx_bytes, .received_bytes = stats.rx_bytes};
  }
  return std::nullopt;
}

}  // namespace

std::optional<InterfaceTraffic> InterfaceReader::read(int index) {
  if (index <= 0) return std::nullopt;
  const int type = SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK;
  if (!socket_) socket_.reset(socket(AF_NETLINK, type, NETLINK_ROUTE));
  LinkRequest request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = RTM_GETLINK;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.link.ifi_family = AF_UNSPEC;
  request.link.ifi_index = index;
  // The kernel replies synchronously.
  if (send(socket_.get(), &request, sizeof request, 0) != sizeof request) return std::nullopt;
  alignas(nlmsghdr) char answer[kAnswerBytes];
  const ssize_t bytes = recv(socket_.get(), answer, sizeof answer, 0);
  auto* const message = reinterpret_cast<nlmsghdr*>(answer);
  if (bytes <= 0 || !NLMSG_OK(message, bytes)) return std::nullopt;
  return trafficIn(message);
}

}  // namespace topoopt
