#include "transport/shm/memory_link.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace topoopt {

MemoryWire::MemoryWire(size_t ring_bytes) {
  for (int side = 0; side < 2; ++side) {
    rings_[side].resize(ring_bytes);
    bells_[side].reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!bells_[side]) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
}

void MemoryWire::ring(int side) const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(bells_[side].get(), &one, sizeof one);
}

void MemoryWire::cut() {
  for (int side = 0; side < 2; ++side) {
    gone_[side] = true;
    ring(1 - side);
  }
}

MemoryLink::MemoryLink(const LinkSpec& spec, const Context& context)
    : RingLink(spec, context),
      wire_(spec.memory ? spec.memory->wire : nullptr),
      side_(spec.memory ? spec.memory->side : 0) {
  if (!wire_) throw std::invalid_argument("link " + textOf(spec.link) + " has no wire in memory");
}

ByteRing MemoryLink::ringFrom(int side) const {
  return {&wire_->states_[side], wire_->rings_[side].data(), wire_->rings_[side].size()};
}

void MemoryLink::start() {
  // Never read: every ring is a change.
  reactor().watch(wire_->bells_[side_].get(), EPOLLIN | EPOLLET, this);
  attach(ringFrom(side_), ringFrom(1 - side_));
}

void MemoryLink::onReady(uint32_t) {
  if (wire_->gone_[1 - side_]) peerGone();
}

void MemoryLink::closeBell() {
  reactor().unwatch(wire_->bells_[side_].get());
  wire_->gone_[side_] = true;
  ringBell();
}

}  // namespace topoopt
