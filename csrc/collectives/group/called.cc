#include "collectives/group/called.h"

#include <array>
#include <utility>

namespace topoopt {
namespace {

constexpr size_t kKept = 1024;  // calls in a history: 24 KiB

constexpr std::array<const char*, 10> kNames = {
    "all_reduce", "broadcast", "reduce",     "all_gather",        "reduce_scatter",
    "gather",     "scatter",   "all_to_all", "all_to_all_single", "barrier"};

constexpr std::array<const char*, 9> kOps = {"",           "sum",         "product",
                                             "minimum",    "maximum",     "bitwise and",
                                             "bitwise or", "bitwise xor", "average"};

// The finalizer of splitmix64: every input bit flips half of the output bits.
uint64_t scramble(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

}  // namespace

const char* nameOf(CallName name) { return kNames.at(static_cast<size_t>(name)); }

CalledOp calledOp(ReduceOp op) {
  return static_cast<CalledOp>(static_cast<uint8_t>(CalledOp::kSum) + static_cast<uint8_t>(op));
}
static_assert(static_cast<int>(CalledOp::kBitXor) - static_cast<int>(CalledOp::kSum) ==
              static_cast<int>(ReduceOp::kBitXor) - static_cast<int>(ReduceOp::kSum));

uint64_t mixBits(uint64_t seed, uint64_t value) { return scramble(scramble(seed) ^ value); }

uint64_t hashSizes(const std::vector<size_t>& sizes) {
  uint64_t hash = sizes.size();
  for (const size_t size : sizes) hash = mixBits(hash, size);
  return hash;
}

Called hashed(Called called, uint64_t arguments) {
  const uint64_t words = static_cast<uint64_t>(called.name) |
                         static_cast<uint64_t>(called.type) << 8 |
                         static_cast<uint64_t>(called.op) << 16 |
                         static_cast<uint64_t>(static_cast<uint32_t>(called.root)) << 32;
  const uint64_t hash = mixBits(words, arguments);
  called.hash = static_cast<uint32_t>(hash ^ (hash >> 32));
  return called;
}

// ---- texts -------------------------------------------------------------------------------------

std::string textOf(size_t bytes, DataType type) {
  const size_t size = elementSize(type);
  if (bytes % size != 0) return std::to_string(bytes) + " bytes";
  return std::to_string(bytes / size) + " " + nameOf(type);
}

std::string textOf(const Called& called, const std::vector<int>& ranks) {
  std::string text = nameOf(called.name);
  if (called.op != CalledOp::kNone) {
    text += std::string(" (") + kOps.at(static_cast<size_t>(called.op)) + ")";
  }
  if (called.name != CallName::kBarrier) text += " of " + textOf(called.bytes, called.type);
  if (called.root >= 0 && static_cast<size_t>(called.root) < ranks.size()) {
    const bool from = called.name == CallName::kBroadcast || called.name == CallName::kScatter;
    text += (from ? " from rank " : " to rank ") + std::to_string(ranks[called.root]);
  }
  return text;
}

std::string disagreement(Caller a, Caller b, const std::vector<int>& ranks, uint64_t number,
                         const std::string& group) {
  if (b.rank < a.rank) std::swap(a, b);
  const std::string first = "rank " + std::to_string(a.rank);
  const std::string second = "rank " + std::to_string(b.rank);
  std::string why = first + " and " + second + " disagree about operation " +
                    std::to_string(number) + " of group " + group + ": " + first + " called " +
                    textOf(a.called, ranks) + ", " + second + " called " + textOf(b.called, ranks);
  if (textOf(a.called, ranks) == textOf(b.called, ranks)) {
    why += ", with other sizes of single ranks or by another algorithm";
  }
  return why;
}

std::string disagreement(const PairExchange& transfer, const Called& called, uint64_t number,
                         const std::string& group) {
  const std::string sender = "rank " + std::to_string(transfer.sender);
  const std::string receiver = "rank " + std::to_string(transfer.receiver);
  return sender + " and " + receiver + " disagree in " + nameOf(called.name) + " (operation " +
         std::to_string(number) + " of group " + group + "): " + sender + " sends " +
         textOf(transfer.sent_bytes, called.type) + ", " + receiver + " receives " +
         textOf(transfer.expected_bytes, called.type);
}

bool isValid(const Called& called) {
  return called.name <= CallName::kBarrier && called.type <= DataType::kBytes &&
         called.op <= CalledOp::kAverage;
}

// ---- history -----------------------------------------------------------------------------------

void CallHistory::add(uint64_t number, const Called& called) {
  if (calls_.size() < kKept) {
    calls_.push_back(called);
  } else {
    calls_[number % kKept] = called;
  }
  next_ = number + 1;
}

std::optional<Called> CallHistory::at(uint64_t number) const {
  if (number >= next_ || number + calls_.size() < next_) return std::nullopt;
  return calls_[number % kKept];
}

}  // namespace topoopt
