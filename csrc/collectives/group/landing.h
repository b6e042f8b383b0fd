// The host memory of a collective on device tensors. It is copied in slices of equal size while the
// collective runs: inputs from the device, results back as soon as they are final.
//
// One thread copies, and another runs the collective without waiting for it: a step that needs a
// missing slice is retried when one lands. Landing never waits for the network, so the two cannot
// deadlock.

#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace topoopt {

class Landing {
 public:
  // Slices of a buffer from `begin` on; the last may be smaller. `pending`: not yet landed.
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

  // `changed` is called on the thread of the collective when takeOrder() or takeFinal() have new
  // entries.
  Landing(std::vector<Region> regions, size_t slice_bytes, std::function<void()> changed);

  // ---- copying thread ----

  // The bytes of a slice are there.
  void landed(Slice slice);
  // Returns final slices, each once.
  std::vector<Slice> takeFinal();
  // Returns all slices in the order of their first use, once; empty before begin().
  std::vector<Slice> takeOrder();

  // ---- caller, before the collective starts ----

  // Keeps results from becoming final until the collective is done and its caller was notified.
  void holdResults();

  // ---- thread of the collective ----

  // Announces the steps of the collective, in a valid order: memory that they use, and writes that
  // lead to results. Memory outside of the regions is allowed.
  void willUse(const void* data, size_t bytes);
  void willWrite(const void* data, size_t bytes);
  // Ends the announcements. `wake` is called on the copying thread whenever a slice has landed.
  void begin(std::function<void()> wake);
  bool has(const void* data, size_t bytes) const;
  void wrote(const void* data, size_t bytes);
  // The collective is done or cancelled.
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
  bool finish(Slice slice);  // true if it became final

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
