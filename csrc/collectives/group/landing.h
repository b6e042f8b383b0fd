// The host memory of a collective on device tensors, which is filled and emptied while the
// collective runs: in slices of equal size, some of which are copied from the device, and each of
// which may be copied back as soon as its results are final.
//
// One thread copies; the collective runs on another, which never waits for the first: what needs a
// slice that has not landed is tried again when one has. Landing never waits for the network, so
// that waiting for it cannot form a cycle.

#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace topoopt {

class Landing {
 public:
  // Slices of a buffer from `begin` on; the last one may be smaller. `pending`: which of them are
  // not there yet.
  struct Region {
    const std::byte* begin;
    size_t bytes;
    std::vector<bool> pending;
  };
  struct Slice {
    size_t region = 0;
    size_t index = 0;
    bool operator==(const Slice&) const = default;
  };

  // `changed` is called on the thread of the collective when takeOrder() or takeFinal() have
  // something new.
  Landing(std::vector<Region> regions, size_t slice_bytes, std::function<void()> changed);

  // ---- who copies ----

  // The bytes of a slice are there.
  void landed(Slice slice);
  // Slices whose results are final and have not been returned yet.
  std::vector<Slice> takeFinal();
  // All that the collective uses, in the order in which it first does. Empty before it has begun,
  // and when it has been taken.
  std::vector<Slice> takeOrder();

  // ---- who starts the collective, before it does ----

  // Results are not final before the collective is over and its caller has been called.
  void holdResults();

  // ---- who runs the collective: all on one thread ----

  // Steps of the collective, in an order in which they may be run: some use memory (they read it or
  // write to it), some write results or what will become results. Memory of no region may be named.
  void willUse(const void* data, size_t bytes);
  void willWrite(const void* data, size_t bytes);
  // All has been said. `wake` is called on the copying thread whenever a slice has landed.
  void begin(std::function<void()> wake);
  bool has(const void* data, size_t bytes) const;
  // One of the writes is done.
  void wrote(const void* data, size_t bytes);
  // The collective is over, or will not go on.
  void end();

 private:
  struct State {
    bool landed = true;
    bool used = false;
    bool final = false;
    size_t writes_left = 0;
  };
  struct Extent {
    const std::byte* begin;
    size_t bytes;
    std::vector<State> slices;
  };

  // Calls visit(Slice) for the slices that the bytes touch.
  template <typename Visit>
  void visit(const void* data, size_t bytes, const Visit& visit) const;
  bool finish(Slice slice);  // true if it has become final

  const size_t slice_bytes_;
  const std::function<void()> changed_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Extent> regions_;
  std::vector<Slice> order_;
  std::vector<Slice> final_;
  std::function<void()> wake_;
  bool begun_ = false;
  bool held_ = false;
};

}  // namespace topoopt
