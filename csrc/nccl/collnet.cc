#include "nccl/collnet.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "plan/hop_table.h"

namespace topoopt::nccl {

namespace {

constexpr std::chrono::milliseconds kNoLimit{0};  // the endpoint detects dead ranks

// Signed and unsigned integers have the same sums and products, bit for bit.
std::optional<DataType> typeOf(int element, bool ordered) {
  switch (element) {
    case kInt8Number:
      return DataType::kInt8;
    case kUint8Number:
      return DataType::kUint8;
    case kUint32Number:
      if (ordered) return std::nullopt;
      [[fallthrough]];
    case kInt32Number:
      return DataType::kInt32;
    case kUint64Number:
      if (ordered) return std::nullopt;
      [[fallthrough]];
    case kInt64Number:
      return DataType::kInt64;
    case kFloat16Number:
      return DataType::kFloat16;
    case kFloat32Number:
      return DataType::kFloat32;
    case kFloat64Number:
      return DataType::kFloat64;
    case kBfloat16Number:
      return DataType::kBfloat16;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> operationOf(int reduction) {
  switch (reduction) {
    case kSumNumber:
      return ReduceOp::kSum;
    case kProductNumber:
      return ReduceOp::kProduct;
    case kMaxNumber:
      return ReduceOp::kMax;
    case kMinNumber:
      return ReduceOp::kMin;
    default:
      return std::nullopt;
  }
}

std::shared_ptr<const HopTable> hopsOf(const Wiring& wiring) {
  std::vector<plan::LinkPorts> links;
  for (const Cable& cable : wiring.cables) {
    links.push_back(cable.link);
    if (cable.duplex) links.push_back({cable.link.target, -1, cable.link.source, -1});
  }
  std::vector<plan::Route> listed;
  for (plan::Route route : wiring.routes) {
    for (int& rank : route.servers) rank = wiring.serverOf(rank);
    auto& servers = route.servers;
    servers.erase(std::unique(servers.begin(), servers.end()), servers.end());
    if (servers.size() > 1) listed.push_back(std::move(route));
  }
  return std::make_shared<HopTable>(
      HopTable::ofRoutes(wiring.serverCount(), links, {}, {}, listed));
}

CostModel costOf(const Wiring& wiring) {
  CostModel cost;
  double slowest = 0;
  for (const Cable& cable : wiring.cables) {
    if (cable.gbps > 0) slowest = slowest > 0 ? std::min(slowest, cable.gbps) : cable.gbps;
  }
  if (slowest > 0) cost.beta_s_per_byte = 1 / (slowest * kBytesPerGbps);
  return cost;
}

}  // namespace

GroupConfig collNetGroup(const Wiring& wiring, std::vector<int> ranks, int rank, uint32_t channel) {
  GroupConfig group;
  group.name = "CollNet " + std::to_string(channel);
  group.channel = channel;
  group.rank = rank;
  group.ranks = std::move(ranks);
  std::map<int, int> members;  // by server
  for (const int of_endpoint : group.ranks) {
    const int server = wiring.serverOf(of_endpoint);
    members.try_emplace(server, static_cast<int>(group.servers.size()));
    group.servers.push_back(server);
  }
  for (plan::Ring ring : wiring.rings) {
    std::erase_if(ring.servers, [&](int server) { return !members.contains(server); });
    for (int& place : ring.servers) place = members.at(place);
    group.rings.push_back(std::move(ring));
  }
  group.hops = hopsOf(wiring);
  group.cost = costOf(wiring);
  return group;
}

std::optional<TypedReduction> reductionOf(int element, int reduction) {
  const auto op = operationOf(reduction);
  if (!op) return std::nullopt;
  const auto type = typeOf(element, op == ReduceOp::kMin || op == ReduceOp::kMax);
  if (!type) return std::nullopt;
  return TypedReduction{*type, *op};
}

std::vector<size_t> BlockWindow::parts(int members) const {
  std::vector<size_t> parts;
  for (size_t i = 0; i < static_cast<size_t>(members); ++i) {
    const size_t first = std::max(offset, i * block_bytes);
    const size_t end = std::min(offset + bytes, (i + 1) * block_bytes);
    parts.push_back(end > first ? end - first : 0);
  }
  return parts;
}

CollComm::CollComm(std::shared_ptr<Endpoint> endpoint, const GroupConfig& group)
    : rank_(group.rank), size_(static_cast<int>(group.ranks.size())) {
  for (uint32_t i = 0; i < kGroups; ++i) {
    GroupConfig one = group;
    one.channel += i;
    groups_.push_back(Group::open(endpoint, std::move(one)));
  }
}

CollRequest* CollComm::take(size_t bytes) {
  for (CollRequest& request : requests_) {
    if (request.used) continue;
    request.comm = this;
    request.used = true;
    request.bytes = bytes;
    request.over = false;
    return &request;
  }
  return nullptr;
}

Done CollComm::doneOf(CollRequest& request) {
  return [self = shared_from_this(), &request](std::exception_ptr error) {
    if (error) self->fail(whatFailed(error));
    request.over = true;
  };
}

CollRequest* CollComm::allReduce(const void* in, void* out, size_t count,
                                 const TypedReduction& reduction) {
  const size_t bytes = count * elementSize(reduction.type);
  CollRequest* const request = take(bytes);
  if (!request) return nullptr;
  if (in != out && bytes > 0) std::memcpy(out, in, bytes);
  next().allReduce(out, count, reduction.type, reduction.op, kNoLimit, doneOf(*request));
  return request;
}

CollRequest* CollComm::allGather(const void* in, void* out, const BlockWindow& window) {
  CollRequest* const request = take(window.bytes);
  if (!request) return nullptr;
  std::vector<size_t> parts = window.parts(size_);
  const auto own = parts.begin() + rank_;
  const size_t before = std::accumulate(parts.begin(), own, size_t{0});
  if (*own > 0) std::memmove(static_cast<char*>(out) + before, in, *own);
  next().allGather(out, std::move(parts), kNoLimit, doneOf(*request));
  return request;
}

CollRequest* CollComm::reduceScatter(const void* in, void* out, const BlockWindow& window,
                                     const TypedReduction& reduction) {
  std::vector<size_t> counts = window.parts(size_);
  CollRequest* const request = take(counts[static_cast<size_t>(rank_)]);
  if (!request) return nullptr;
  for (size_t& count : counts) count /= elementSize(reduction.type);
  next().reduceScatter(in, out, std::move(counts), reduction.type, reduction.op, kNoLimit,
                       doneOf(*request));
  return request;
}

Result CollComm::test(CollRequest& request, bool& done, int* bytes) {
  done = request.over;
  if (failed_) return kRemoteError;
  if (!done) return kSuccess;
  if (bytes) *bytes = static_cast<int>(request.bytes);
  request.used = false;
  return kSuccess;
}

void CollComm::close() {
  const bool idle = std::all_of(requests_.begin(), requests_.end(), [](const CollRequest& request) {
    return !request.used || request.over;
  });
  for (const auto& group : groups_) {
    if (!idle) group->abort("a member has closed the communicator during an operation");
    group->shutdown();
  }
  groups_.clear();
}

void CollComm::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  why_ = why;
  failed_ = true;
}

std::string CollComm::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

}  // namespace topoopt::nccl
