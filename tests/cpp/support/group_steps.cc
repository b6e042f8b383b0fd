#include "support/group_steps.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "support/traffic.h"

namespace topoopt {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<plan::Ring> randomRings(size_t size, size_t count, TestRandom& random) {
  std::vector<plan::Ring> rings;
  for (size_t r = 0; r < count; ++r) {
    plan::Ring ring{std::vector<int>(size), r + 1 == count ? 0.5 : 0.0};
    ring.share += 0.5 / static_cast<double>(count);  // the last one gets more
    std::iota(ring.servers.begin(), ring.servers.end(), 0);
    std::shuffle(ring.servers.begin(), ring.servers.end(), random.engine());
    rings.push_back(ring);
  }
  return rings;
}

// Small whole numbers, whose sums and products are exact in every type and any order.
void storeNumber(DataType type, std::byte* at, size_t number) {
  constexpr uint16_t kHalf[] = {0, 0x3c00, 0x4000};
  constexpr uint16_t kBrain[] = {0, 0x3f80, 0x4000};
  const auto store = [at](auto value) { std::memcpy(at, &value, sizeof value); };
  switch (type) {
    case DataType::kUint8:
    case DataType::kInt8:
      return store(static_cast<uint8_t>(number));
    case DataType::kBool:
      return store(static_cast<uint8_t>(number % 2));
    case DataType::kInt16:
      return store(static_cast<int16_t>(number));
    case DataType::kInt32:
      return store(static_cast<int32_t>(number));
    case DataType::kInt64:
      return store(static_cast<int64_t>(number));
    case DataType::kFloat16:
      return store(kHalf[number]);
    case DataType::kBfloat16:
      return store(kBrain[number]);
    case DataType::kFloat32:
      return store(static_cast<float>(number));
    case DataType::kFloat64:
      return store(static_cast<double>(number));
    default:
      throw std::invalid_argument(nameOf(type));
  }
}

Bytes randomNumbers(DataType type, size_t count, TestRandom& random) {
  const size_t element = elementSize(type);
  Bytes bytes(count * element);
  uint64_t word = random.word();
  for (size_t i = 0; i < count; ++i) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    storeNumber(type, bytes.data() + i * element, (word >> 40) % 3);
  }
  return bytes;
}

// What a random operation is about, and one buffer in and out per member.
struct Job {
  int size;
  TestRandom& random;
  size_t max_elements;
  bool synchronous;

  DataType type = static_cast<DataType>(random.between(0, 9));
  ReduceOp op = static_cast<ReduceOp>(random.between(0, 3));
  size_t count = random.size(max_elements);
  int root = static_cast<int>(random.between(0, static_cast<size_t>(size) - 1));
  size_t element = elementSize(type);
  CallTerms terms{kNoHurry, synchronous};

  struct Memory {
    std::vector<Bytes> input;
    std::vector<Bytes> output;
    std::vector<Bytes> expected;  // of the output; empty where there is none
  };
  std::shared_ptr<Memory> memory = makeMemory();

  std::shared_ptr<Memory> makeMemory() const {
    auto memory = std::make_shared<Memory>();
    memory->input.resize(static_cast<size_t>(size));
    memory->output.resize(static_cast<size_t>(size));
    memory->expected.resize(static_cast<size_t>(size));
    return memory;
  }
  std::vector<size_t> randomCounts() const {
    std::vector<size_t> counts;
    for (int i = 0; i < size; ++i) counts.push_back(random.size(max_elements / 2));
    return counts;
  }
  void fillInputs(size_t elements) const {
    for (Bytes& input : memory->input) input = randomNumbers(type, elements, random);
  }
  Bytes reduced() const {
    Bytes sum = memory->input[0];
    for (int i = 1; i < size; ++i) {
      reduceInto(type, op, sum.data(), memory->input[i].data(), sum.size() / element);
    }
    return sum;
  }
  Step step(std::string name, std::function<void(Group&, int, Done)> start) const {
    return {std::move(name), std::move(start),
            [memory = memory] { return memory->output == memory->expected; },
            std::vector<Outcome>(static_cast<size_t>(size))};
  }
};

size_t sumOf(const std::vector<size_t>& values) {
  return std::accumulate(values.begin(), values.end(), size_t{0});
}

size_t startOf(const std::vector<size_t>& values, int index) {
  return std::accumulate(values.begin(), values.begin() + index, size_t{0});
}

Bytes part(const Bytes& whole, size_t start, size_t bytes) {
  const auto first = whole.begin() + static_cast<ptrdiff_t>(start);
  return Bytes(first, first + static_cast<ptrdiff_t>(bytes));
}

std::vector<size_t> times(std::vector<size_t> values, size_t factor) {
  for (size_t& value : values) value *= factor;
  return values;
}

Step allReduceStep(const Job& job) {
  job.fillInputs(job.count);
  job.memory->output = job.memory->input;
  job.memory->expected.assign(job.memory->expected.size(), job.reduced());
  return job.step("all_reduce", [m = job.memory, terms = job.terms, count = job.count,
                                 type = job.type, op = job.op](Group& group, int i, Done done) {
    group.allReduce(m->output[i].data(), count, type, op, terms, std::move(done));
  });
}

Step broadcastStep(const Job& job) {
  job.fillInputs(job.count);
  job.memory->output = job.memory->input;
  job.memory->expected.assign(job.memory->expected.size(), job.memory->input[job.root]);
  return job.step("broadcast", [m = job.memory, terms = job.terms, root = job.root](
                                   Group& group, int i, Done done) {
    group.broadcast(m->output[i].data(), m->output[i].size(), root, terms, std::move(done));
  });
}

Step reduceStep(const Job& job) {
  job.fillInputs(job.count);
  job.memory->expected[job.root] = job.reduced();
  // A group of one has no peer to send to; its caller copies.
  job.memory->output[job.root] =
      job.size == 1 ? job.memory->input[0] : Bytes(job.count * job.element);
  return job.step("reduce", [m = job.memory, terms = job.terms, count = job.count, type = job.type,
                             op = job.op, root = job.root](Group& group, int i, Done done) {
    group.reduce(m->input[i].data(), m->output[i].data(), count, type, op, root, terms,
                 std::move(done));
  });
}

Step allGatherStep(const Job& job) {
  const auto bytes = times(job.randomCounts(), job.element);
  const Bytes all = randomBytes(sumOf(bytes), job.random);
  for (int i = 0; i < job.size; ++i) {
    job.memory->expected[i] = all;
    Bytes& output = job.memory->output[i];
    output.resize(all.size());
    const auto own = static_cast<ptrdiff_t>(startOf(bytes, i));
    std::copy_n(all.begin() + own, bytes[i], output.begin() + own);
  }
  return job.step("all_gather",
                  [m = job.memory, terms = job.terms, bytes](Group& group, int i, Done done) {
                    group.allGather(m->output[i].data(), bytes, terms, std::move(done));
                  });
}

Step reduceScatterStep(const Job& job) {
  const auto counts = job.randomCounts();
  job.fillInputs(sumOf(counts));
  const Bytes sum = job.reduced();
  for (int i = 0; i < job.size; ++i) {
    job.memory->expected[i] = part(sum, startOf(counts, i) * job.element, counts[i] * job.element);
    job.memory->output[i].resize(counts[i] * job.element);
  }
  if (job.size == 1) job.memory->output = job.memory->input;
  return job.step("reduce_scatter", [m = job.memory, terms = job.terms, counts, type = job.type,
                                     op = job.op](Group& group, int i, Done done) {
    group.reduceScatter(m->input[i].data(), m->output[i].data(), counts, type, op, terms,
                        std::move(done));
  });
}

Step scatterStep(const Job& job) {
  const size_t bytes = job.count / static_cast<size_t>(job.size) * job.element;
  const Bytes all = randomBytes(bytes * static_cast<size_t>(job.size), job.random);
  job.memory->input[job.root] = all;
  for (int i = 0; i < job.size; ++i) {
    job.memory->expected[i] = part(all, static_cast<size_t>(i) * bytes, bytes);
    job.memory->output[i].resize(bytes);
  }
  job.memory->output[job.root] = job.memory->expected[job.root];
  return job.step("scatter", [m = job.memory, terms = job.terms, bytes, root = job.root](
                                 Group& group, int i, Done done) {
    group.scatter(m->input[i].data(), m->output[i].data(), bytes, root, terms, std::move(done));
  });
}

Step gatherStep(const Job& job) {
  const size_t bytes = job.count / static_cast<size_t>(job.size) * job.element;
  const Bytes all = randomBytes(bytes * static_cast<size_t>(job.size), job.random);
  for (int i = 0; i < job.size; ++i) {
    job.memory->input[i] = part(all, static_cast<size_t>(i) * bytes, bytes);
  }
  job.memory->expected[job.root] = all;
  Bytes& output = job.memory->output[job.root];
  output.resize(all.size());
  const auto own = static_cast<ptrdiff_t>(bytes) * job.root;
  std::copy_n(all.begin() + own, bytes, output.begin() + own);
  return job.step("gather", [m = job.memory, terms = job.terms, bytes, root = job.root](
                                Group& group, int i, Done done) {
    group.gather(m->input[i].data(), m->output[i].data(), bytes, root, terms, std::move(done));
  });
}

Step exchangeStep(const Job& job) {
  std::vector<std::vector<size_t>> send;
  for (int i = 0; i < job.size; ++i) {
    send.push_back(job.randomCounts());
    send.back()[i] = 0;
    job.memory->input[i] = randomBytes(sumOf(send.back()), job.random);
  }
  std::vector<std::vector<size_t>> receive(send.size());
  for (int i = 0; i < job.size; ++i) {
    for (int from = 0; from < job.size; ++from) {
      receive[i].push_back(send[from][i]);
      const Bytes block = part(job.memory->input[from], startOf(send[from], i), send[from][i]);
      auto& expected = job.memory->expected[i];
      expected.insert(expected.end(), block.begin(), block.end());
    }
    job.memory->output[i].resize(sumOf(receive[i]));
  }
  return job.step("all_to_all", [m = job.memory, terms = job.terms, send, receive](
                                    Group& group, int i, Done done) {
    group.exchange(CallName::kAllToAll, m->input[i].data(), send[i], m->output[i].data(),
                   receive[i], terms, std::move(done));
  });
}

Step barrierStep(const Job& job) {
  auto called = std::make_shared<std::atomic<int>>(0);
  auto early = std::make_shared<std::atomic<bool>>(false);
  Step step = job.step(
      "barrier", [called, early, size = job.size, terms = job.terms](Group& group, int, Done done) {
        ++*called;
        group.barrier(terms, [=](std::exception_ptr error) {
          if (*called < size) *early = true;
          done(error);
        });
      });
  step.right = [early] { return !*early; };
  return step;
}

// From the root to the next member, beside the collectives.
Step pointToPointStep(const Job& job, int tag) {
  const int target = (job.root + 1) % job.size;
  job.memory->input[job.root] = randomBytes(job.count, job.random);
  job.memory->expected[target] = job.memory->input[job.root];
  job.memory->output[target].resize(job.count);
  return job.step("send", [m = job.memory, root = job.root, target, tag](Group& group, int i,
                                                                         Done done) {
    if (i == root) {
      return group.send({m->input[i].data(), m->input[i].size()}, target, tag, kNoHurry,
                        std::move(done));
    }
    if (i != target) return done(nullptr);
    group.receive({m->output[i].data(), m->output[i].size()}, root, tag, kNoHurry, std::move(done));
  });
}

// All send to the root, which takes their messages as they come.
Step receiveAnyStep(const Job& job, int tag) {
  const size_t bytes = job.count;
  auto sources = std::make_shared<std::vector<int>>(static_cast<size_t>(job.size), -1);
  auto arrived = std::make_shared<std::vector<Bytes>>(static_cast<size_t>(job.size), Bytes(bytes));
  for (Bytes& input : job.memory->input) input = randomBytes(bytes, job.random);
  Step step =
      job.step("receive_any", [=, m = job.memory, root = job.root](Group& group, int i, Done done) {
        if (i != root)
          return group.send({m->input[i].data(), bytes}, root, tag, kNoHurry, std::move(done));
        auto left = std::make_shared<std::atomic<int>>(group.size() - 1);
        for (int n = 1; n < group.size(); ++n) {
          group.receiveAny(
              {(*arrived)[n].data(), bytes}, tag, kNoHurry,
              [sources, n](int from) { (*sources)[n] = from; },
              [left, done](std::exception_ptr error) {
                if (--*left == 0) done(error);
              });
        }
      });
  step.right = [=, m = job.memory, root = job.root] {
    std::vector<bool> seen(m->input.size(), false);
    for (size_t n = 1; n < m->input.size(); ++n) {
      const int from = (*sources)[n];
      if (from < 0 || from == root || seen[from]) return false;
      seen[from] = true;
      if ((*arrived)[n] != m->input[from]) return false;
    }
    return true;
  };
  return step;
}

Step randomStep(int size, size_t max_elements, int tag, int any_tag, TestRandom& random,
                bool synchronous) {
  const Job job{size, random, max_elements, synchronous};
  switch (random.between(0, size > 1 ? 10 : 8)) {
    case 0:
      return allReduceStep(job);
    case 1:
      return broadcastStep(job);
    case 2:
      return reduceStep(job);
    case 3:
      return allGatherStep(job);
    case 4:
      return reduceScatterStep(job);
    case 5:
      return exchangeStep(job);
    case 6:
      return barrierStep(job);
    case 7:
      return scatterStep(job);
    case 8:
      return gatherStep(job);
    case 9:
      return pointToPointStep(job, tag);
    default:
      return receiveAnyStep(job, any_tag);
  }
}

}  // namespace

int sharedMemory(int size) {
  const int fd = memfd_create("team", MFD_CLOEXEC);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(TeamSegment::bytesFor(size))), 0);
  return fd;
}

Members::Members(Network& network, uint32_t channel, const std::vector<int>& ranks,
                 size_t ring_count, TestRandom& random, bool share_memory)
    : Members(network, channel, ranks, randomRings(ranks.size(), ring_count, random),
              share_memory) {}

Members::Members(Network& network, uint32_t channel, const std::vector<int>& ranks,
                 const std::vector<plan::Ring>& rings, bool share_memory)
    : ranks_(ranks) {
  const int memory = share_memory ? sharedMemory(static_cast<int>(ranks.size())) : -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    GroupConfig config;
    config.name = "test " + std::to_string(channel);
    config.channel = channel;
    config.rank = static_cast<int>(i);
    config.ranks = ranks;
    config.rings = rings;
    if (share_memory) config.segment_fd = dup(memory);
    groups_.push_back(Group::open(network.at(ranks[i]), config));
  }
  if (share_memory) close(memory);
}

void Members::shutdown() {
  for (const auto& group : groups_) group->shutdown();
}

void Members::shutdownOn(int rank) {
  const auto at = std::find(ranks_.begin(), ranks_.end(), rank);
  if (at != ranks_.end()) groups_[at - ranks_.begin()]->shutdown();
}

Steps::Steps(int size, size_t count, size_t max_elements, TestRandom& random, bool synchronous) {
  for (size_t i = 0; i < count; ++i) {
    // Tags repeat, so that messages of one flow follow each other; but a receive from any rank must
    // not take a message that was meant for another.
    const int number = static_cast<int>(i);
    steps_.push_back(randomStep(size, max_elements, number % 3, 100 + number, random, synchronous));
  }
}

void Steps::startOne(size_t step, Group& group, int member) {
  steps_[step].start(group, member, steps_[step].outcomes[member].done());
}

void Steps::start(Members& members) {
  std::vector<std::thread> threads;
  for (int member = 0; member < members.size(); ++member) {
    threads.emplace_back([&, member] {
      for (size_t step = 0; step < steps_.size(); ++step) startOne(step, members[member], member);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Steps::check() {
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    for (size_t member = 0; member < step.outcomes.size(); ++member) {
      ASSERT_EQ(step.outcomes[member].wait(step.name + ", step " + std::to_string(i) + ", member " +
                                           std::to_string(member)),
                "");
    }
    ASSERT_TRUE(step.right()) << "wrong result of step " << i << ", " << step.name;
  }
}

}  // namespace topoopt
