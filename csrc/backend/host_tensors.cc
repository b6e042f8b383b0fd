#include "backend/host_tensors.h"

#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace topoopt {
namespace {

// Memory of freed tensors that the device may still use; released at the next allocation.
class Left {
 public:
  void add(c10::DataPtr memory, const c10::Stream& made_on) {
    Entry entry{std::move(memory), {}};
    try {
      const c10::Stream current =
          c10::impl::VirtualGuardImpl(made_on.device_type()).getStream(made_on.device());
      for (const c10::Stream& stream : {made_on, current}) {
        entry.until.emplace_back(stream.device_type()).record(stream);
      }
    } catch (const std::exception&) {
      // The device has failed, so the end of its use is unknown.
      [[maybe_unused]] void* const kept = entry.memory.release_context();
      return;
    }
    const std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
  }

  void free() {
    std::list<Entry> done;
    {
      const std::lock_guard lock(mutex_);
      for (auto entry = entries_.begin(); entry != entries_.end();) {
        const auto next = std::next(entry);
        if (entry->passed()) done.splice(done.end(), entries_, entry);
        entry = next;
      }
    }
  }

 private:
  struct Entry {
    c10::DataPtr memory;
    std::vector<c10::Event> until;

    bool passed() const {
      for (const c10::Event& event : until) {
        if (!event.query()) return false;
      }
      return true;
    }
  };

  std::mutex mutex_;
  std::list<Entry> entries_;
};

// Never destroyed, because tensors may outlive static objects.
Left& left() {
  static auto& left = *new Left;
  return left;
}

}  // namespace

at::Tensor allocateHostTensor(int64_t elements, const at::TensorOptions& options) {
  left().free();
  const c10::impl::VirtualGuardImpl guard(options.device().type());
  const c10::Device device = options.device().has_index() ? options.device() : guard.getDevice();
  const auto bytes = static_cast<size_t>(elements) * options.dtype().itemsize();
  // At least one byte, so that the pointer is not null.
  auto memory = std::make_shared<c10::DataPtr>(at::globalContext()
                                                   .getPinnedMemoryAllocator(device.type())
                                                   ->allocate(std::max<size_t>(bytes, 1)));
  void* const begin = memory->get();
  return at::from_blob(
      begin, {elements},
      [memory, stream = guard.getStream(device)](void*) { left().add(std::move(*memory), stream); },
      options.device(device), device);
}

}  // namespace topoopt
