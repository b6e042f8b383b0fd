// Loads the network plugin as NCCL does, and drives it as NCCL's proxy does, without NCCL: one
// process per rank.
//
//   nccl_net_harness PLUGIN VERSION EXCHANGE RANK RANKS SCENARIO
//
// EXCHANGE is a file that all ranks share, for the handles that NCCL passes over its own network.
// Scenarios: pairs, mesh BYTES, ring BYTES [cut], gone, wrong, rate BYTES FROM TO, delay FROM TO;
// of CollNet: collectives, collectives-gone, collectives-wrong, all_reduce BYTES CHUNK [cut]. It
// prints one line, and ends with status 1 and why if something is not as it must be.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "nccl_collnet_scenarios.h"
#include "nccl_net_api.h"
#include "nccl_ranks.h"

namespace {

using namespace topoopt::nccl;

struct Pair {
  void* sends = nullptr;
  void* receives = nullptr;
};

struct Rank {
  Api api;
  Exchange& exchange;
  int rank;
  int ranks;
  std::mt19937 random{static_cast<unsigned>(rank)};

  void meet(size_t number) { topoopt::nccl::meet(exchange, number, ranks); }

  // Connections with `peers`, both ways, in an order that differs on every rank.
  std::vector<Pair> connect(const std::vector<int>& peers, size_t round) {
    std::vector<Pair> pairs(static_cast<size_t>(ranks));
    std::vector<void*> listeners(pairs.size());
    std::vector<std::array<char, kHandleBytes>> handles(pairs.size());
    for (const int peer : peers) {
      auto& slot = exchange.of[round][static_cast<size_t>(rank)][static_cast<size_t>(peer)];
      must(api.listen(0, slot.handle.data(), &listeners[static_cast<size_t>(peer)]) == kSuccess,
           "listen");
      slot.there = 1;
    }
    std::vector<int> steps;  // accept from p: p, connect to p: p + ranks
    for (const int peer : peers) steps.insert(steps.end(), {peer, peer + ranks});
    Until until("connecting");
    while (!steps.empty()) {
      std::shuffle(steps.begin(), steps.end(), random);
      std::erase_if(steps, [&](int step) { return did(step, round, pairs, listeners, handles); });
      until.look();
    }
    for (const int peer : peers) {
      must(api.close_listen(listeners[static_cast<size_t>(peer)]) == kSuccess, "closeListen");
    }
    return pairs;
  }

  bool did(int step, size_t round, std::vector<Pair>& pairs, std::vector<void*>& listeners,
           std::vector<std::array<char, kHandleBytes>>& handles) {
    const auto peer = static_cast<size_t>(step % ranks);
    if (step < ranks) {
      must(api.accept(listeners[peer], &pairs[peer].receives, nullptr) == kSuccess, "accept");
      return pairs[peer].receives != nullptr;
    }
    auto& slot = exchange.of[round][peer][static_cast<size_t>(rank)];
    if (!slot.there) return false;
    if (slot.there == 1) {  // NCCL keeps the handle between its calls of connect
      handles[peer] = slot.handle;
      slot.there = 2;
    }
    must(api.connect(0, handles[peer].data(), &pairs[peer].sends) == kSuccess, "connect");
    return pairs[peer].sends != nullptr;
  }

  void* send(void* comm, void* data, size_t bytes, int tag) {
    void* memory = nullptr;
    must(api.register_memory(comm, data, bytes, kHostMemory, &memory) == kSuccess, "regMr");
    void* request = nullptr;
    Until until("isend");
    for (;;) {
      must(api.send(comm, data, bytes, tag, memory, &request) == kSuccess, "isend");
      if (request) break;
      until.look();
    }
    must(api.deregister(comm, memory) == kSuccess, "deregMr");
    return request;
  }

  void* receive(void* comm, std::vector<void*> data, std::vector<size_t> bytes,
                std::vector<int> tags) {
    std::vector<void*> memory(data.size());
    void* request = nullptr;
    Until until("irecv");
    for (;;) {
      must(api.receive(comm, static_cast<int>(data.size()), data.data(), bytes.data(), tags.data(),
                       memory.data(), &request) == kSuccess,
           "irecv");
      if (request) break;
      until.look();
    }
    return request;
  }

  std::array<int, kMostGrouped> wait(void* request) {
    std::array<int, kMostGrouped> sizes{};
    int done = 0;
    Until until("a request");
    for (;;) {
      must(api.test(request, &done, sizes.data()) == kSuccess, "test");
      if (done) return sizes;
      until.look();
    }
  }

  void close(const std::vector<Pair>& pairs) {
    for (const Pair& pair : pairs) {
      if (pair.sends) must(api.close_send(pair.sends) == kSuccess, "closeSend");
      if (pair.receives) must(api.close_receive(pair.receives) == kSuccess, "closeRecv");
    }
  }

  std::vector<int> everyone() const {
    std::vector<int> peers = others();
    peers.push_back(rank);
    return peers;
  }

  std::vector<int> others() const {
    std::vector<int> peers;
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer != rank) peers.push_back(peer);
    }
    return peers;
  }
};

std::vector<unsigned char> pattern(size_t bytes, int from, int to, int number) {
  std::vector<unsigned char> data(bytes);
  uint32_t value = static_cast<uint32_t>((from * 64 + to) * 64 + number) * 2654435761u + 1;
  for (unsigned char& byte : data)
    byte = static_cast<unsigned char>((value = value * 1664525u + 1013904223u) >> 24);
  return data;
}

// Eight messages that are on their way at once, into buffers that are larger than some of them.
void outstanding(Rank& here, const std::vector<Pair>& pairs, const std::vector<size_t>& sizes) {
  for (const int peer : here.everyone()) {
    const Pair& pair = pairs[static_cast<size_t>(peer)];
    std::vector<std::vector<unsigned char>> out, in;
    std::vector<void*> sent, received;
    for (size_t i = 0; i < sizes.size(); ++i) {
      out.push_back(pattern(sizes[i], here.rank, peer, static_cast<int>(i)));
      in.emplace_back(sizes[i] + i % 2 * 100);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      received.push_back(here.receive(pair.receives, {in[i].data()}, {in[i].size()}, {5}));
      sent.push_back(here.send(pair.sends, out[i].data(), sizes[i], 5));
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      must(here.wait(received[i])[0] == static_cast<int>(sizes[i]), "the size of a receive");
      here.wait(sent[i]);
      in[i].resize(sizes[i]);
      must(in[i] == pattern(sizes[i], peer, here.rank, static_cast<int>(i)), "bytes are wrong");
    }
  }
}

// One receive of eight buffers, whose tags the sender uses in the opposite order.
void grouped(Rank& here, const std::vector<Pair>& pairs) {
  for (const int peer : here.everyone()) {
    const Pair& pair = pairs[static_cast<size_t>(peer)];
    std::vector<std::vector<unsigned char>> out, in;
    std::vector<void*> data, sent;
    std::vector<int> tags;
    for (int i = 0; i < kMostGrouped; ++i) {
      out.push_back(pattern(static_cast<size_t>(i) * 1000, here.rank, peer, i));
      in.emplace_back(8000);
      data.push_back(in.back().data());
      tags.push_back(100 + i);
    }
    void* received =
        here.receive(pair.receives, data, std::vector<size_t>(kMostGrouped, 8000), tags);
    for (int i = kMostGrouped - 1; i >= 0; --i) {
      const auto at = static_cast<size_t>(i);
      sent.push_back(here.send(pair.sends, out[at].data(), out[at].size(), 100 + i));
    }
    const auto sizes = here.wait(received);
    for (void* request : sent) here.wait(request);
    int none = 0;
    void* memory = nullptr;
    void* flushed = nullptr;
    must(here.api.flush(pair.receives, 1, data.data(), &none, &memory, &flushed) == kSuccess,
         "iflush");
    for (int i = 0; i < kMostGrouped; ++i) {
      const auto at = static_cast<size_t>(i);
      must(sizes[at] == i * 1000, "the size of a grouped receive");
      in[at].resize(static_cast<size_t>(i) * 1000);
      must(in[at] == pattern(in[at].size(), peer, here.rank, i), "grouped bytes are wrong");
    }
  }
}

void pairsScenario(Rank& here) {
  const auto pairs = here.connect(here.everyone(), 0);
  const auto second = here.connect(here.everyone(), 1);  // of another communicator
  outstanding(here, pairs, {0, 1, 17, 4096, 65536, 100'001, 1 << 20, 0});
  outstanding(here, second, {64 << 10, 0, 3});
  grouped(here, second);
  here.close(pairs);
  grouped(here, second);
  if (here.rank < 2) {
    const auto large = static_cast<size_t>(64) << 20;
    const Pair& pair = second[static_cast<size_t>(1 - here.rank)];
    std::vector<unsigned char> data =
        here.rank == 0 ? pattern(large, 0, 1, 9) : std::vector<unsigned char>(large);
    void* request = here.rank == 0 ? here.send(pair.sends, data.data(), large, 1)
                                   : here.receive(pair.receives, {data.data()}, {large}, {1});
    here.wait(request);
    must(data == pattern(large, 0, 1, 9), "64 MiB are wrong");
  }
  here.meet(0);
  here.close(second);
  std::printf("rank %d: all pairs\n", here.rank);
}

// All pairs at once, a message each way.
void meshScenario(Rank& here, size_t bytes) {
  const Clock::time_point began = Clock::now();
  const auto pairs = here.connect(here.everyone(), 0);
  const double connected = std::chrono::duration<double>(Clock::now() - began).count();
  here.meet(0);
  std::vector<std::vector<unsigned char>> out, in;
  std::vector<void*> requests;
  for (const int peer : here.everyone()) {
    const Pair& pair = pairs[static_cast<size_t>(peer)];
    in.emplace_back(bytes);
    out.push_back(pattern(bytes, here.rank, peer, 0));
    requests.push_back(here.receive(pair.receives, {in.back().data()}, {bytes}, {0}));
    requests.push_back(here.send(pair.sends, out.back().data(), bytes, 0));
  }
  for (void* request : requests) here.wait(request);
  size_t at = 0;
  for (const int peer : here.everyone()) {
    must(in[at++] == pattern(bytes, peer, here.rank, 0), "bytes are wrong");
  }
  here.meet(1);
  here.close(pairs);
  std::printf("rank %d: all pairs connected in %.3f s\n", here.rank, connected);
}

int parentOf(int rank, int ranks) {  // in NCCL's first tree
  const int lowest = rank & -rank;
  const int beside = (rank ^ lowest) | lowest << 1;
  return beside < ranks ? beside : rank ^ lowest;
}

// What a slice begins and ends with.
uint64_t stampOf(int rank, size_t step) { return (static_cast<uint64_t>(rank) << 40) + step + 1; }

// A ring AllReduce's traffic, in NCCL's slices; the trees' neighbours connect as well. With `cut`,
// rank 0 loses a cable in the middle.
void ringScenario(Rank& here, size_t bytes, bool cut) {
  std::vector<int> tree;
  for (int other = 0; other < here.ranks; ++other) {
    const bool child = other > 0 && parentOf(other, here.ranks) == here.rank;
    const bool parent = here.rank > 0 && parentOf(here.rank, here.ranks) == other;
    if (child || parent) tree.push_back(other);
  }
  const int next = (here.rank + 1) % here.ranks;
  const int before = (here.rank + here.ranks - 1) % here.ranks;
  const auto ring = here.connect(next == before ? std::vector{next} : std::vector{next, before}, 0);
  const auto trees = here.connect(tree, 1);
  here.meet(0);
  const size_t share = bytes / static_cast<size_t>(here.ranks);
  const size_t slice = std::min(share, size_t{512} << 10);
  const size_t last = slice - sizeof(uint64_t);
  std::vector<unsigned char> out(slice * 8), in(slice * 8);
  const size_t steps = share / slice * 2 * static_cast<size_t>(here.ranks - 1);
  std::vector<void*> sent(8), received(8);
  const Clock::time_point began = Clock::now();
  for (size_t step = 0; step < steps + 8; ++step) {
    const size_t at = step % 8;
    unsigned char* const from = in.data() + at * slice;
    unsigned char* const to = out.data() + at * slice;
    if (step >= 8) {
      here.wait(received[at]);
      here.wait(sent[at]);
      const uint64_t stamp = stampOf(before, step - 8);
      must(std::memcmp(from, &stamp, sizeof stamp) == 0 &&
               std::memcmp(from + last, &stamp, sizeof stamp) == 0,
           "a slice is wrong");
    }
    if (step >= steps) continue;
    if (cut && here.rank == 0 && step == steps / 2) cutCable();
    const uint64_t stamp = stampOf(here.rank, step);
    std::memcpy(to, &stamp, sizeof stamp);
    std::memcpy(to + last, &stamp, sizeof stamp);
    received[at] = here.receive(ring[static_cast<size_t>(before)].receives, {from}, {slice}, {0});
    sent[at] = here.send(ring[static_cast<size_t>(next)].sends, to, slice, 0);
  }
  here.meet(1);
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::printf("rank %d: sent_bytes %zu seconds %.6f\n", here.rank, steps * slice, seconds);
  here.close(ring);
  here.close(trees);
}

// Half of the time that eight bytes take to and fro, the median of many.
void delayScenario(Rank& here, int from, int to) {
  const auto pairs = here.connect(here.others(), 0);
  here.meet(0);
  const bool begins = here.rank == from;
  if (begins || here.rank == to) {
    const Pair& pair = pairs[static_cast<size_t>(begins ? to : from)];
    std::array<char, 8> data{};
    std::vector<double> seconds;
    const auto passOn = [&](bool sends) {
      here.wait(sends ? here.send(pair.sends, data.data(), data.size(), 0)
                      : here.receive(pair.receives, {data.data()}, {data.size()}, {0}));
    };
    for (int i = 0; i < 501; ++i) {
      const Clock::time_point began = Clock::now();
      passOn(begins);
      passOn(!begins);
      seconds.push_back(std::chrono::duration<double>(Clock::now() - began).count() / 2);
    }
    std::nth_element(seconds.begin(), seconds.begin() + 250, seconds.end());
    if (begins) std::printf("rank %d: round_bytes 8 seconds %.6f\n", here.rank, seconds[250]);
  }
  here.meet(1);
  here.close(pairs);
}

void rateScenario(Rank& here, size_t bytes, int from, int to) {
  const auto pairs = here.connect(here.others(), 0);
  here.meet(0);
  const size_t slice = size_t{512} << 10;
  const bool sends = here.rank == from;
  if (sends || here.rank == to) {
    const Pair& pair = pairs[static_cast<size_t>(sends ? to : from)];
    std::vector<unsigned char> data(slice * 8);
    std::vector<void*> requests(8);
    const size_t steps = bytes / slice;
    const Clock::time_point began = Clock::now();
    for (size_t step = 0; step < steps + 8; ++step) {
      if (step >= 8) here.wait(requests[step % 8]);
      if (step >= steps) continue;
      unsigned char* at = data.data() + step % 8 * slice;
      requests[step % 8] = sends ? here.send(pair.sends, at, slice, 0)
                                 : here.receive(pair.receives, {at}, {slice}, {0});
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    if (!sends)
      std::printf("rank %d: received_bytes %zu seconds %.6f\n", here.rank, steps * slice, seconds);
  }
  here.meet(1);
  here.close(pairs);
}

// Rank 1 dies with a receive of rank 0 open: an error of the other end, and not a wait for ever.
void goneScenario(Rank& here) {
  const auto pairs = here.connect(here.others(), 0);
  here.meet(0);
  if (here.rank == 1) _exit(0);
  if (here.rank != 0) {
    for (Until until("rank 0"); !here.exchange.arrived[1];) until.look();
    return here.close(pairs);
  }
  char byte = 0;
  void* request = here.receive(pairs[1].receives, {&byte}, {1}, {0});
  Result result = kSuccess;
  int done = 0;
  for (Until until("the loss of a rank"); result == kSuccess && !done; until.look()) {
    result = here.api.test(request, &done, nullptr);
  }
  must(result == kRemoteError, "test gives " + std::to_string(result));
  ++here.exchange.arrived[1];
  here.close(pairs);
  std::printf("rank 0: remote error\n");
}

void wrongScenario(Rank& here) {
  const auto pairs = here.connect(here.others(), 0);
  const Pair& pair = pairs[static_cast<size_t>(here.others()[0])];
  void* none = nullptr;
  PropertiesV11 properties{};
  must(here.api.properties(1, properties) == kInvalidArgument, "a device that is not there");
  std::array<char, kHandleBytes> handle{};
  must(here.api.connect(0, handle.data(), &none) == kInvalidArgument, "a handle of nobody");
  must(here.api.send(pair.receives, &none, 1, 0, nullptr, &none) == kInvalidUsage, "a send there");
  std::array<void*, 9> data{};
  std::array<size_t, 9> sizes{};
  std::array<int, 9> tags{};
  must(here.api.receive(pair.receives, 9, data.data(), sizes.data(), tags.data(), data.data(),
                        &none) == kInvalidArgument,
       "nine buffers");
  must(here.api.register_memory(pair.sends, &none, 8, 2, &none) == kInvalidUsage, "device memory");
  must(here.api.register_dma_buf(pair.sends, &none, 8, 4, 0, 0, &none) == kInvalidUsage, "dmabuf");
  here.meet(0);
  // A message that is larger than its receive is an error of the receiving end.
  std::vector<unsigned char> data_out(100), data_in(10);
  if (here.rank == 0) {
    here.send(pairs[1].sends, data_out.data(), 100, 3);
  } else if (here.rank == 1) {
    void* request = here.receive(pairs[0].receives, {data_in.data()}, {10}, {3});
    Result result = kSuccess;
    int done = 0;
    for (Until until("a message that is too large"); result == kSuccess && !done; until.look()) {
      result = here.api.test(request, &done, nullptr);
    }
    must(result == kRemoteError, "a message that is too large gives " + std::to_string(result));
  }
  here.meet(1);
  here.close(pairs);
  std::printf("rank %d: all refused\n", here.rank);
}

using namespace std::string_literals;

void run(int count, char** words) {
  must(count >= 7, "usage: nccl_net_harness PLUGIN VERSION EXCHANGE RANK RANKS SCENARIO ...");
  Rank here{load(words[1], std::atoi(words[2])), openExchange(words[3]), std::atoi(words[4]),
            std::atoi(words[5])};
  must(here.api.init() == kSuccess, "init");
  int devices = 0;
  PropertiesV11 properties{};
  must(here.api.devices(&devices) == kSuccess && devices == 1, "devices");
  must(here.api.properties(0, properties) == kSuccess, "getProperties");
  must(properties.memory_kinds == kHostMemory && properties.most_grouped == kMostGrouped &&
           properties.speed_mbps > 0,
       "properties");
  const std::string scenario = words[6];
  const auto number = [&](int at) { return count > at ? std::stoll(words[at]) : 0; };
  if (scenario == "pairs") pairsScenario(here);
  if (scenario == "gone") goneScenario(here);
  if (scenario == "wrong") wrongScenario(here);
  if (scenario == "mesh") meshScenario(here, static_cast<size_t>(number(7)));
  if (scenario == "delay") {
    delayScenario(here, static_cast<int>(number(7)), static_cast<int>(number(8)));
  }
  if (scenario == "ring") {
    ringScenario(here, static_cast<size_t>(number(7)), count > 8 && words[8] == "cut"s);
  }
  const Member member{loadCollNet(words[1], std::atoi(words[2])), here.exchange, here.rank,
                      here.ranks};
  if (scenario == "collectives") collectivesScenario(member);
  if (scenario == "collectives-gone") lostMemberScenario(member);
  if (scenario == "collectives-wrong") wrongCollectivesScenario(member);
  if (scenario == "all_reduce") {
    allReduceScenario(member, static_cast<size_t>(number(7)), static_cast<size_t>(number(8)),
                      count > 9 && words[9] == "cut"s);
  }
  if (scenario == "rate") {
    rateScenario(here, static_cast<size_t>(number(7)), static_cast<int>(number(8)),
                 static_cast<int>(number(9)));
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    run(count, words);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %s: %s\n", count > 4 ? words[4] : "?", error.what());
    return 1;
  }
}
