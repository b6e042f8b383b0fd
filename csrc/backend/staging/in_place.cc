#include "backend/staging/in_place.h"

#include <ATen/Context.h>
#include <ATen/detail/AcceleratorHooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <set>

#include "common/log.h"

namespace topoopt {
namespace {

using Part = StagingBuffer::Part;

bool covers(const std::vector<Part>& parts, int64_t elements) {
  return parts.size() == 1 && parts[0].offset == 0 && parts[0].tensor.numel() == elements;
}

// The tensor behind a buffer: the written one, or the only one that is read.
at::Tensor placeOf(const StagingBuffer& buffer) {
  if (covers(buffer.writes, buffer.elements)) return buffer.writes[0].tensor;
  if (buffer.writes.empty() && covers(buffer.reads, buffer.elements)) return buffer.reads[0].tensor;
  return {};
}

bool sharesMemory(const at::Tensor& place, const StagingBuffer& other) {
  const auto shares = [&](const Part& part) { return place.is_alias_of(part.tensor); };
  return std::any_of(other.reads.begin(), other.reads.end(), shares) ||
         std::any_of(other.writes.begin(), other.writes.end(), shares);
}

// The whole storage as bytes, so that tensors that share memory also do so on the host.
at::Tensor wholeMemory(const at::Tensor& tensor, const HostReach& reach) {
  const c10::Storage& storage = tensor.storage();
  auto* const begin = static_cast<std::byte*>(reach.memory) -
                      tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  return at::from_blob(
      begin, {static_cast<int64_t>(storage.nbytes())}, [storage](void*) {},
      at::TensorOptions().dtype(at::kByte).device(at::kCPU));
}

void use(StagingBuffer& buffer, const at::Tensor& place, const at::Tensor& memory) {
  const auto size = static_cast<int64_t>(place.element_size());
  buffer.place = place;
  buffer.host = memory.narrow(0, place.storage_offset() * size, place.numel() * size)
                    .view(place.scalar_type());
  const auto* const begin = static_cast<const std::byte*>(place.const_data_ptr());
  std::erase_if(buffer.reads, [&](const Part& part) {
    return part.tensor.const_data_ptr() == begin + part.offset * size;
  });
  buffer.writes.clear();
}

// Logged once per process, kind of device and answer.
void say(c10::DeviceType device, const HostReach& reach) {
  if (!logs(LogLevel::kInfo)) return;
  static std::mutex mutex;
  static std::set<std::pair<c10::DeviceType, std::string>> said;
  const std::lock_guard lock(mutex);
  if (!said.emplace(device, reach.what).second) return;
  const std::string tensors = "tensors on " + c10::DeviceTypeName(device, /*lower_case=*/true);
  logLine(LogLevel::kInfo, reach.memory != nullptr
                               ? tensors + " are used in place: " + reach.what
                               : tensors + " are copied to the host and back: " + reach.what);
}

}  // namespace

HostReach InPlace::reachOf(const at::Tensor& tensor) const {
  if (!allowed_) return {nullptr, "TOPOOPT_DEVICE_MEMORY=copy"};
  if (tensor.is_conj() || tensor.is_neg()) return {nullptr, "elements that a copy calculates"};
  auto* const memory = tensor.mutable_data_ptr();
  HostReach reach{nullptr, "memory of the device alone"};
  try {
    const c10::DeviceGuard guard(tensor.device());
    const auto cuda = tensor.is_cuda() ? CudaDriver::loaded() : std::nullopt;
    if (cuda) {
      reach = reachByCuda(*cuda, memory, tensor.device().index(), registers_);
    } else if (at::globalContext()
                   .getAcceleratorHooksInterface(tensor.device().type())
                   .isPinnedPtr(memory)) {
      reach = {memory, "page-locked host memory"};
    }
  } catch (const c10::Error&) {
    return {nullptr, "memory of which the driver says nothing"};
  }
  return confirmedByKernel(reach, tensor.nbytes());
}

HostReach InPlace::reachOf(const StagingBuffer& buffer) const {
  if (buffer.elements == 0) return {};
  const at::Tensor place = placeOf(buffer);
  return place.defined() ? reachOf(place) : HostReach{nullptr, "parts that lie apart"};
}

void InPlace::find(std::vector<StagingBuffer>& buffers) {
  std::vector<HostReach> reaches;
  for (const StagingBuffer& buffer : buffers) reaches.push_back(reachOf(buffer));
  for (bool changed = true; std::exchange(changed, false);) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      for (size_t other = 0; other < buffers.size() && reaches[i].memory != nullptr; ++other) {
        if (reaches[other].memory != nullptr) continue;
        if (!sharesMemory(placeOf(buffers[i]), buffers[other])) continue;
        reaches[i] = {nullptr, "memory of another tensor, which is copied"};
        changed = true;
      }
    }
  }
  std::map<const c10::StorageImpl*, at::Tensor> memories;
  for (size_t i = 0; i < buffers.size(); ++i) {
    StagingBuffer& buffer = buffers[i];
    if (buffer.elements == 0) continue;
    const std::vector<Part>& parts = buffer.writes.empty() ? buffer.reads : buffer.writes;
    const size_t bytes = static_cast<size_t>(buffer.elements) * c10::elementSize(buffer.type);
    if (!parts.empty()) count(parts[0].tensor.device(), reaches[i], bytes);
    if (reaches[i].memory == nullptr) continue;
    const at::Tensor place = placeOf(buffer);
    at::Tensor& memory = memories[place.storage().unsafeGetStorageImpl()];
    if (!memory.defined()) memory = wholeMemory(place, reaches[i]);
    use(buffer, place, memory);
  }
}

void InPlace::count(c10::Device device, const HostReach& reach, size_t bytes) {
  say(device.type(), reach);
  const std::lock_guard lock(mutex_);
  Use& use = uses_[reach.what];
  use.in_place = reach.memory != nullptr;
  use.bytes += bytes;
}

std::map<std::string, InPlace::Use> InPlace::uses() const {
  const std::lock_guard lock(mutex_);
  return uses_;
}

}  // namespace topoopt
