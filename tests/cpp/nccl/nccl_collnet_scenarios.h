// Scenarios of the harness that drive CollNet as NCCL's proxy does.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "nccl_collnet_api.h"
#include "nccl_ranks.h"

namespace topoopt::nccl {

struct Member {
  CollApi api;
  Exchange& exchange;
  int rank;
  int ranks;

  // The communicator of these ranks; nullptr on the others.
  void* connect(size_t round, const std::vector<int>& members) const {
    void* listener = nullptr;
    auto& own = exchange.of[round][static_cast<size_t>(rank)][static_cast<size_t>(rank)];
    must(api.listen(0, own.handle.data(), &listener) == kSuccess, "listen");
    own.there = 1;
    std::vector<void*> handles;
    int place = -1;
    for (const int member : members) {
      if (member == rank) place = static_cast<int>(handles.size());
      auto& slot = exchange.of[round][static_cast<size_t>(member)][static_cast<size_t>(member)];
      for (Until until("a handle"); !slot.there;) until.look();
      handles.push_back(slot.handle.data());
    }
    void* comm = nullptr;
    if (place >= 0) {
      const auto count = static_cast<int>(handles.size());
      must(api.connect(handles.data(), count, place, listener, &comm) == kSuccess && comm,
           "connect");
    }
    must(api.functions.close_listen(listener) == kSuccess, "closeListen");
    return comm;
  }

  std::vector<int> everyone() const { return every(0, 1); }
  std::vector<int> every(int first, int step) const {
    std::vector<int> members;
    for (int member = first; member < ranks; member += step) members.push_back(member);
    return members;
  }

  int wait(void* request) const {
    int done = 0, bytes = 0;
    for (Until until("a collective");; until.look()) {
      must(api.functions.test(request, &done, &bytes) == kSuccess, "test");
      if (done) return bytes;
    }
  }

  // The final result of test() after a failure.
  Result failureOf(void* request) const {
    int done = 0;
    Result result = kSuccess;
    for (Until until("a failure"); result == kSuccess && !done; until.look()) {
      result = api.functions.test(request, &done, nullptr);
    }
    return result;
  }

  void* allReduce(void* comm, void* in, void* out, size_t count, int element, int reduction) const {
    void* request = nullptr;
    for (Until until("iallreduce"); !request; until.look()) {
      must(api.functions.all_reduce(comm, in, out, count, element, reduction, nullptr, nullptr,
                                    &request) == kSuccess,
           "iallreduce");
    }
    return request;
  }
};

using Bytes = std::vector<unsigned char>;

constexpr std::array<size_t, 10> kElementBytes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

// A small integer as an element; exact in every type, or modulo its size.
inline void put(Bytes& to, size_t index, int element, int64_t value) {
  const size_t size = kElementBytes[static_cast<size_t>(element)];
  unsigned char* const at = to.data() + index * size;
  const auto single = std::bit_cast<uint32_t>(static_cast<float>(value));
  const auto both = static_cast<double>(value);
  const uint32_t half = (single >> 16 & 0x8000) | (((single >> 23 & 0xff) - 112) << 10 & 0x7c00) |
                        (single >> 13 & 0x3ff);
  switch (element) {
    case kFloat16Number:
      std::memcpy(at, &half, size);
      break;
    case kBfloat16Number:
      std::memcpy(at, reinterpret_cast<const char*>(&single) + 2, size);
      break;
    case kFloat32Number:
      std::memcpy(at, &single, size);
      break;
    case kFloat64Number:
      std::memcpy(at, &both, size);
      break;
    default:
      std::memcpy(at, &value, size);
  }
}

inline int64_t elementOf(int rank, size_t index, int reduction) {
  const auto mixed = static_cast<int64_t>(index * 7 + static_cast<size_t>(rank) * 5);
  return reduction == kProductNumber ? 1 + (mixed % 4 == 0) : 1 + mixed % 3;
}

inline Bytes elementsOf(int rank, size_t count, int element, int reduction) {
  Bytes bytes(count * kElementBytes[static_cast<size_t>(element)]);
  for (size_t i = 0; i < count; ++i) put(bytes, i, element, elementOf(rank, i, reduction));
  return bytes;
}

inline Bytes reducedElements(int ranks, size_t count, int element, int reduction) {
  Bytes bytes(count * kElementBytes[static_cast<size_t>(element)]);
  for (size_t i = 0; i < count; ++i) {
    int64_t whole = elementOf(0, i, reduction);
    for (int rank = 1; rank < ranks; ++rank) {
      const int64_t value = elementOf(rank, i, reduction);
      if (reduction == kSumNumber) whole += value;
      if (reduction == kProductNumber) whole *= value;
      if (reduction == kMaxNumber) whole = std::max(whole, value);
      if (reduction == kMinNumber) whole = std::min(whole, value);
    }
    put(bytes, i, element, whole);
  }
  return bytes;
}

// In a communicator.
struct Place {
  int rank;
  int members;
};

// All sizes are in flight at once, in place and out of place.
inline void allReduces(const Member& here, void* comm, const Place& place, int element,
                       int reduction) {
  const std::vector<size_t> counts{1, 7, 1000, 20'003, 1, 4096, 300, 65'536, 12, 5000};
  std::vector<Bytes> in, out;
  std::vector<void*> requests;
  for (const size_t count : counts) {
    in.push_back(elementsOf(place.rank, count, element, reduction));
    out.emplace_back(in.back().size());
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    void* const to = i % 2 == 0 ? out[i].data() : in[i].data();
    requests.push_back(here.allReduce(comm, in[i].data(), to, counts[i], element, reduction));
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    must(here.wait(requests[i]) == static_cast<int>(in[i].size()), "the size of an all_reduce");
    const Bytes expected = reducedElements(place.members, counts[i], element, reduction);
    must((i % 2 == 0 ? out[i] : in[i]) == expected, "an all_reduce of elements " +
                                                        std::to_string(element) + ", reduction " +
                                                        std::to_string(reduction) + " is wrong");
  }
}

// Gathers and scatters blocks of all members, a window at a time, as NCCL does with large ones.
inline void windows(const Member& here, void* comm, size_t count, size_t window) {
  const size_t block = count * sizeof(float);
  const size_t all = block * static_cast<size_t>(here.ranks);
  const size_t own = block * static_cast<size_t>(here.rank);
  const Bytes whole =
      elementsOf(here.rank, count * static_cast<size_t>(here.ranks), kFloat32Number, kSumNumber);
  const Bytes mine(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(block));
  Bytes gathered(all), reduced(block), sent = whole;
  std::vector<void*> requests;
  for (size_t first = 0; first < all; first += window) {
    const size_t bytes = std::min(window, all - first);
    const size_t at = std::clamp(first, own, own + block) - own;  // in the own block
    BufferPart out{nullptr, gathered.data() + first, bytes};
    BufferPart in{nullptr, sent.data() + first, bytes};
    must(here.api.functions.all_gather(comm, const_cast<unsigned char*>(mine.data()) + at, 1, &out,
                                       block, first, bytes, nullptr,
                                       &requests.emplace_back()) == kSuccess,
         "iallgather");
    must(here.api.functions.reduce_scatter(comm, 1, &in, reduced.data() + at, block, first, bytes,
                                           kFloat32Number, kSumNumber, nullptr,
                                           &requests.emplace_back()) == kSuccess,
         "ireducescatter");
  }
  for (void* request : requests) here.wait(request);
  for (int other = 0; other < here.ranks; ++other) {
    const Bytes theirs = elementsOf(other, count, kFloat32Number, kSumNumber);
    must(std::equal(theirs.begin(), theirs.end(),
                    gathered.begin() + static_cast<std::ptrdiff_t>(block) * other),
         "gathered blocks are wrong");
  }
  const Bytes sums = reducedElements(here.ranks, count * static_cast<size_t>(here.ranks),
                                     kFloat32Number, kSumNumber);
  must(std::equal(reduced.begin(), reduced.end(), sums.begin() + static_cast<std::ptrdiff_t>(own)),
       "a reduced block is wrong");
}

inline void checkDevice(const Member& here) {
  int devices = 0;
  must(here.api.init() == kSuccess, "init");
  must(here.api.devices(&devices) == kSuccess && devices == 1, "devices");
  must(here.api.memory_kinds == kHostMemory, "properties");
}

inline bool claims(const Member& here, int element, int reduction) {
  int supported = -1;
  must(here.api.supports(element, reduction, &supported) == kSuccess, "reduceSupport");
  return supported == 1;
}

inline void collectivesScenario(const Member& here) {
  checkDevice(here);
  void* const comm = here.connect(0, here.everyone());
  // With two ranks on each server, those without the cables.
  const std::vector<int> odd = here.every(1, 2);
  void* const some = here.connect(1, odd);
  const Place all_here{here.rank, here.ranks};
  const Place some_here{here.rank / 2, static_cast<int>(odd.size())};
  for (int element = kInt8Number; element <= kBfloat16Number; ++element) {
    for (int reduction = kSumNumber; reduction <= kMinNumber; ++reduction) {
      const bool ordered = reduction == kMaxNumber || reduction == kMinNumber;
      const bool known = !(ordered && (element == kUint32Number || element == kUint64Number));
      must(claims(here, element, reduction) == known, "what reduceSupport claims");
      if (known) allReduces(here, comm, all_here, element, reduction);
    }
  }
  must(!claims(here, 10, kSumNumber) && !claims(here, kFloat32Number, 4), "8-bit floats, averages");
  if (some) allReduces(here, some, some_here, kFloat32Number, kSumNumber);
  windows(here, comm, 5000, 12'000);
  windows(here, comm, 3, 4096);
  void* flushed = &flushed;
  must(here.api.functions.flush(comm, nullptr, 0, nullptr, &flushed) == kSuccess && !flushed,
       "iflush");
  must(here.api.functions.close(comm) == kSuccess, "closeColl");
  if (some) {
    allReduces(here, some, some_here, kInt64Number, kMaxNumber);
    must(here.api.functions.close(some) == kSuccess, "closeColl");
  }
  meet(here.exchange, 0, here.ranks);
  std::printf("rank %d: all collectives\n", here.rank);
}

// An AllReduce in operations of `chunk` bytes, eight of them in flight, between two regions. With
// `cut`, rank 0 loses a cable in the middle.
inline void allReduceScenario(const Member& here, size_t bytes, size_t chunk, bool cut) {
  checkDevice(here);
  void* const comm = here.connect(0, here.everyone());
  const size_t count = chunk / sizeof(float);
  const size_t steps = bytes / chunk;
  const Bytes in = elementsOf(here.rank, count, kFloat32Number, kSumNumber);
  const Bytes expected = reducedElements(here.ranks, count, kFloat32Number, kSumNumber);
  std::vector<Bytes> sent(8, in), received(8, Bytes(chunk));
  std::vector<void*> requests(8);
  meet(here.exchange, 0, here.ranks);
  const Clock::time_point began = Clock::now();
  for (size_t step = 0; step < steps + 8; ++step) {
    const size_t at = step % 8;
    if (step >= 8 && step - 8 < steps) {
      here.wait(requests[at]);
      must(received[at] == expected, "a chunk is wrong");
    }
    if (step >= steps) continue;
    if (cut && here.rank == 0 && step == steps / 2) cutCable();
    requests[at] = here.allReduce(comm, sent[at].data(), received[at].data(), count, kFloat32Number,
                                  kSumNumber);
  }
  meet(here.exchange, 1, here.ranks);
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::printf("rank %d: reduced_bytes %zu seconds %.6f\n", here.rank, steps * chunk, seconds);
  must(here.api.functions.close(comm) == kSuccess, "closeColl");
}

// Rank 1 dies, and the others wait for its elements.
inline void lostMemberScenario(const Member& here) {
  checkDevice(here);
  void* const comm = here.connect(0, here.everyone());
  meet(here.exchange, 0, here.ranks);
  if (here.rank == 1) _exit(0);
  Bytes data(4096);
  void* const request =
      here.allReduce(comm, data.data(), data.data(), 1024, kFloat32Number, kSumNumber);
  const Result result = here.failureOf(request);
  must(result == kRemoteError, "test gives " + std::to_string(result));
  meet(here.exchange, 1, here.ranks - 1);
  must(here.api.functions.close(comm) == kSuccess, "closeColl");
  std::printf("rank %d: remote error\n", here.rank);
}

inline void wrongCollectivesScenario(const Member& here) {
  checkDevice(here);
  void* const comm = here.connect(0, here.everyone());
  const auto& functions = here.api.functions;
  void* none = nullptr;
  std::array<char, kHandleBytes> handle{};
  void* handles[] = {handle.data(), handle.data()};
  must(here.api.listen(1, handle.data(), &none) == kInvalidArgument, "a device that is not there");
  must(here.api.connect(handles, 2, 0, nullptr, &none) == kInvalidArgument, "a handle of nobody");
  Bytes data(64);
  BufferPart part{nullptr, data.data(), data.size()};
  must(functions.all_reduce(comm, data.data(), data.data(), 8, 10, 0, nullptr, nullptr, &none) ==
           kInvalidArgument,
       "elements that cannot be reduced");
  must(functions.all_gather(comm, data.data(), 2, &part, 8, 0, 16, nullptr, &none) == kInvalidUsage,
       "two buffers");
  must(functions.reduce_scatter(comm, 1, &part, data.data(), 8, 2, 8, kFloat32Number, kSumNumber,
                                nullptr, &none) == kInvalidArgument,
       "half an element");
  must(functions.register_memory(comm, data.data(), 8, 2, &none) == kInvalidUsage, "device memory");
  meet(here.exchange, 0, here.ranks);
  // Members that reduce different sizes fail.
  void* const request = here.allReduce(comm, data.data(), data.data(), here.rank == 0 ? 8 : 16,
                                       kFloat32Number, kSumNumber);
  must(here.failureOf(request) == kRemoteError, "sizes that differ");
  meet(here.exchange, 1, here.ranks);
  must(functions.close(comm) == kSuccess, "closeColl");
  std::printf("rank %d: all refused\n", here.rank);
}

}  // namespace topoopt::nccl
