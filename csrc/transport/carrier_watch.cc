#include "transport/carrier_watch.h"

#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "common/log.h"

namespace topoopt {
namespace {

constexpr size_t kMessageBytes = 32 << 10;  // largest message of the kernel

}  // namespace

CarrierWatch::CarrierWatch(Reactor& reactor, std::function<void(int)> lost)
    : reactor_(reactor), lost_(std::move(lost)) {
  const int type = SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK;
  socket_.reset(socket(AF_NETLINK, type, NETLINK_ROUTE));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  if (!socket_ || bind(socket_.get(), any, sizeof address) != 0) {
    logLine(LogLevel::kInfo, "the kernel reports no carriers: lost cables are noticed by silence");
    socket_.reset();
    return;
  }
  reactor_.watch(socket_.get(), EPOLLIN | EPOLLET, this);
}

CarrierWatch::~CarrierWatch() {
  if (socket_) reactor_.unwatch(socket_.get());
}

void CarrierWatch::onReady(uint32_t) {
  alignas(nlmsghdr) char buffer[kMessageBytes];
  for (;;) {
    // If reports overflow, silence detection still finds the loss.
    ssize_t bytes = recv(socket_.get(), buffer, sizeof buffer, 0);
    if (bytes <= 0) return;
    for (auto* message = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(message, bytes);
         message = NLMSG_NEXT(message, bytes)) {
      if (message->nlmsg_type != RTM_NEWLINK && message->nlmsg_type != RTM_DELLINK) continue;
      const auto* const link = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
      const bool gone = message->nlmsg_type == RTM_DELLINK;
      constexpr unsigned kUsable = IFF_UP | IFF_RUNNING;
      if (gone || (link->ifi_flags & kUsable) != kUsable) lost_(link->ifi_index);
    }
  }
}

int interfaceOf(int socket) {
  sockaddr_storage near{};
  socklen_t size = sizeof near;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&near), &size) != 0) return 0;
  if (near.ss_family == AF_INET6) {  // only link-local addresses have a scope
    return static_cast<int>(reinterpret_cast<const sockaddr_in6&>(near).sin6_scope_id);
  }
  if (near.ss_family != AF_INET) return 0;
  const auto& own = reinterpret_cast<const sockaddr_in&>(near);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return 0;
  int index = 0;
  for (const ifaddrs* one = all; one != nullptr && index == 0; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const auto* const address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    const bool same = address->sin_addr.s_addr == own.sin_addr.s_addr;
    if (same && !(one->ifa_flags & IFF_LOOPBACK)) {
      index = static_cast<int>(if_nametoindex(one->ifa_name));
    }
  }
  freeifaddrs(all);
  return index;
}

}  // namespace topoopt
