// A link between two endpoints of one process, for tests: the rings of a link in shared memory
// without processes.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "transport/descriptor.h"
#include "transport/shm/ring_link.h"

namespace topoopt {

class MemoryWire {
 public:
  // `ring_bytes` is a power of two. Throws std::system_error.
  explicit MemoryWire(size_t ring_bytes);

  // As if both ends had gone.
  void cut();

 private:
  friend class MemoryLink;
  void ring(int side) const;

  std::array<RingState, 2> states_{};
  std::array<std::vector<std::byte>, 2> rings_;
  std::array<Descriptor, 2> bells_;
  std::array<std::atomic<bool>, 2> gone_{};
};

// One of the two ends of a wire: 0 or 1.
struct MemoryEnd {
  std::shared_ptr<MemoryWire> wire;
  int side = 0;
};

class MemoryLink final : public RingLink {
 public:
  MemoryLink(const LinkSpec& spec, const Context& context);
  ~MemoryLink() override { close(); }

  void start() override;
  void onReady(uint32_t events) override;

 private:
  void ringBell() override { wire_->ring(1 - side_); }
  void closeBell() override;
  ByteRing ringFrom(int side) const;

  const std::shared_ptr<MemoryWire> wire_;
  const int side_;
};

}  // namespace topoopt
