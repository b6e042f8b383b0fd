// Loads the plugin as NCCL loads a tuner, and asks it for one collective.
//
//   nccl_tuner_harness PLUGIN VERSION RANKS NODES COLLECTIVE BYTES [collnet]
//
// NCCL's own table, from version 3 on, says that rings take 2 us with every protocol, trees 1 if it
// is an AllReduce, PAT 3 if it is an AllGather or a ReduceScatter, and that nothing else is
// possible; with `collnet`, so is CollNet without flags, in 4 us. Printed are the algorithm, the
// protocol and the channels that NCCL takes then (-1, -1, 0: what it likes), and the table.

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "nccl/tuner_abi.h"

namespace {

using namespace topoopt::nccl;

constexpr int kAlgorithms = 7, kProtocols = 3;

using Table = std::array<std::array<float, kProtocols>, kAlgorithms>;

struct Question {
  size_t ranks;
  size_t nodes;
  NcclCollective collective;
  size_t bytes;
  bool collnet;
};

struct Answer {
  int algorithm = -1;
  int protocol = -1;
  int channels = 0;
  Table table{};
};

void must(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

void quietly(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level <= kWarnLevel) std::fprintf(stderr, "plugin: %s\n", format);
}

Table tableOfNccl(const Question& question) {
  const NcclCollective collective = question.collective;
  Table table;
  for (auto& row : table) row.fill(kImpossible);
  table[kRing].fill(2);
  if (collective == NcclCollective::kAllReduce) table[kTree].fill(1);
  if (collective == NcclCollective::kAllGather || collective == NcclCollective::kReduceScatter) {
    table[kPat].fill(3);
  }
  if (question.collnet) {
    const bool all_reduce = collective == NcclCollective::kAllReduce;
    table[all_reduce ? kCollNetChain : kCollNetDirect][kSimple] = 4;
  }
  return table;
}

// What NCCL does with the table.
void takeCheapest(Answer& answer) {
  float least = 0;
  for (int algorithm = 0; algorithm < kAlgorithms; ++algorithm) {
    for (int protocol = 0; protocol < kProtocols; ++protocol) {
      const float cost =
          answer.table[static_cast<size_t>(algorithm)][static_cast<size_t>(protocol)];
      if (cost < 0 || (answer.algorithm >= 0 && cost >= least)) continue;
      least = cost;
      answer.algorithm = algorithm;
      answer.protocol = protocol;
    }
  }
}

CostTable passed(Answer& answer) { return reinterpret_cast<CostTable>(answer.table.data()); }

template <typename Tuner>
const Tuner& symbol(void* library, int version) {
  const std::string name = "ncclTunerPlugin_v" + std::to_string(version);
  const void* found = dlsym(library, name.c_str());
  must(found != nullptr, name + " is missing");
  return *static_cast<const Tuner*>(found);
}

Answer askV2(const TunerV2& tuner, const Question& question) {
  Answer answer;
  void* context = nullptr;
  must(tuner.init(question.ranks, question.nodes, quietly, &context) == kSuccess, "init");
  must(tuner.choose(context, question.collective, question.bytes, 0, 0, 1, &answer.algorithm,
                    &answer.protocol, &answer.channels) == kSuccess,
       "getCollInfo");
  must(tuner.destroy(context) == kSuccess, "destroy");
  return answer;
}

Answer askV3(const TunerV3& tuner, const Question& question) {
  Answer answer{.table = tableOfNccl(question)};
  void* context = nullptr;
  must(tuner.init(question.ranks, question.nodes, quietly, &context) == kSuccess, "init");
  must(tuner.choose(context, question.collective, question.bytes, 1, passed(answer), kAlgorithms,
                    kProtocols, &answer.channels) == kSuccess,
       "getCollInfo");
  must(tuner.destroy(context) == kSuccess, "destroy");
  return answer;
}

Answer askV4(const TunerV4& tuner, const Question& question) {
  Answer answer{.table = tableOfNccl(question)};
  void* context = nullptr;
  must(tuner.init(question.ranks, question.nodes, quietly, &context) == kSuccess, "init");
  must(tuner.choose(context, question.collective, question.bytes, 1, passed(answer), kAlgorithms,
                    kProtocols, 0, &answer.channels) == kSuccess,
       "getCollInfo");
  must(tuner.destroy(context) == kSuccess, "destroy");
  return answer;
}

Answer askV5(const TunerV5& tuner, const Question& question) {
  Answer answer{.table = tableOfNccl(question)};
  void* context = nullptr;
  must(tuner.init(&context, 7, question.ranks, question.nodes, quietly, nullptr, nullptr) ==
           kSuccess,
       "init");
  must(tuner.choose(context, question.collective, question.bytes, 1, passed(answer), kAlgorithms,
                    kProtocols, 0, &answer.channels) == kSuccess,
       "getCollInfo");
  must(tuner.finalize(context) == kSuccess, "finalize");
  return answer;
}

Answer ask(void* library, int version, const Question& question) {
  if (version == 2) return askV2(symbol<TunerV2>(library, 2), question);
  Answer answer;
  if (version == 3) answer = askV3(symbol<TunerV3>(library, 3), question);
  if (version == 4) answer = askV4(symbol<TunerV4>(library, 4), question);
  if (version == 5) answer = askV5(symbol<TunerV5>(library, 5), question);
  if (version == 6) {
    const auto& tuner = symbol<TunerV6>(library, 6);
    must(tuner.chunk_size == nullptr, "there is a chunk size");
    answer = askV5(tuner, question);
  }
  takeCheapest(answer);
  return answer;
}

void run(int count, char** words) {
  must(count == 7 || count == 8,
       "usage: nccl_tuner_harness PLUGIN VERSION RANKS NODES COLLECTIVE BYTES [collnet]");
  void* library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  must(library != nullptr, library ? "" : dlerror());
  const auto number = [&](int at) { return std::atoll(words[at]); };
  const Question question{static_cast<size_t>(number(3)), static_cast<size_t>(number(4)),
                          static_cast<NcclCollective>(number(5)), static_cast<size_t>(number(6)),
                          count == 8};
  const Answer answer = ask(library, static_cast<int>(number(2)), question);
  std::printf("%d %d %d", answer.algorithm, answer.protocol, answer.channels);
  for (const auto& row : answer.table) {
    for (const float cost : row) std::printf(" %.9g", static_cast<double>(cost));
  }
  std::printf("\n");
}

}  // namespace

int main(int count, char** words) {
  try {
    run(count, words);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
