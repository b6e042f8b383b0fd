#include "transport/frames/zero_copy_sends.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace topoopt {
namespace {

using Clock = std::chrono::steady_clock;

// Consecutive sends that the kernel copied, after which zero copy is disabled.
constexpr int kMostCopied = 8;
// By default, wait for lent memory while some returns this often, up to a limit.
constexpr std::chrono::milliseconds kMostIdle{100};
constexpr std::chrono::milliseconds kMostWait{1000};

std::optional<sock_extended_err> noticeOf(msghdr& message) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    const bool error = (part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR) ||
                       (part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR);
    if (!error) continue;
    sock_extended_err notice{};
    std::memcpy(&notice, CMSG_DATA(part), sizeof notice);
    if (notice.ee_origin == SO_EE_ORIGIN_ZEROCOPY) return notice;
  }
  return std::nullopt;
}

}  // namespace

void ZeroCopySends::begin(int fd, ZeroCopy mode,
                          std::optional<std::chrono::milliseconds> memory_wait) {
  lent_.clear();
  first_ = 0;
  copied_sends_ = 0;
  always_ = mode == ZeroCopy::kAlways;
  most_idle_ = memory_wait.value_or(kMostIdle);
  most_wait_ = memory_wait.value_or(kMostWait);
  const int on = 1;
  supported_ =
      mode != ZeroCopy::kOff && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0;
  on_ = supported_;
}

void ZeroCopySends::sent(uint64_t offset, size_t bytes) { lent_.push_back({offset, bytes}); }

void ZeroCopySends::over(uint32_t first, uint32_t last, bool copied) {
  for (uint32_t number = first; number != last + 1; ++number) {
    const uint32_t index = number - first_;  // numbers wrap around
    if (index >= lent_.size() || lent_[index].over) continue;
    lent_[index].over = true;
    (copied ? copied_bytes_ : uncopied_bytes_) += lent_[index].bytes;
    copied_sends_ = copied ? copied_sends_ + 1 : 0;
  }
  if (copied_sends_ >= kMostCopied && !always_) on_ = false;
  while (!lent_.empty() && lent_.front().over) {
    lent_.pop_front();
    ++first_;
  }
}

bool ZeroCopySends::takeNotices(int fd) {
  for (bool any = false;; any = true) {
    alignas(cmsghdr) char control[128];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return any;
    if (const auto notice = noticeOf(message)) {
      over(notice->ee_info, notice->ee_data, (notice->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0);
    }
  }
}

bool ZeroCopySends::awaitAll(int fd) {
  const auto begin = Clock::now();
  auto until = begin + most_idle_;
  for (;;) {
    const auto now = Clock::now();
    if (takeNotices(fd)) until = std::min(now + most_idle_, begin + most_wait_);
    if (lent_.empty()) return true;
    if (now >= until) return false;
    pollfd errors{fd, 0, 0};
    // A closed connection is always ready, which would make this loop spin.
    if (poll(&errors, 1, 1) > 0 && (errors.revents & POLLHUP)) poll(nullptr, 0, 1);
  }
}

}  // namespace topoopt
