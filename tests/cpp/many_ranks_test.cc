// What grows with the number of ranks.

#include "many_ranks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace topoopt {
namespace {

void expectNoErrors(const std::vector<std::string>& errors) {
  for (size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(errors[i], "") << "member " << i;
}

TEST(ManyRanks, AThousandStartAndMakeAGroupAndRunItsCollectives) {
  constexpr rlim_t kDescriptors = 9000;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const int size = partOf(2) == 2 && limit.rlim_cur >= kDescriptors ? 1024 : 64;
  std::vector<int> offsets;  // of recursive doubling and of what a barrier sends
  for (int distance = 1; distance < size; distance *= 2) {
    offsets.push_back(distance);
    offsets.push_back(size - distance);
  }
  const ManyRanks ranks(
      {.size = size, .strides = {1, 8, 64}, .offsets = offsets, .wire_bytes = 4096});
  const auto members = ranks.openGroup(1, "doubling");
  std::vector<uint64_t> sums(static_cast<size_t>(size));
  std::iota(sums.begin(), sums.end(), 0);
  expectNoErrors(ManyRanks::onAll(members, [&](Group& group, int member, Done done) {
    group.allReduce(&sums[member], 1, DataType::kInt64, ReduceOp::kSum, kNoHurry, std::move(done));
  }));
  const auto expected = static_cast<uint64_t>(size) * static_cast<uint64_t>(size - 1) / 2;
  EXPECT_EQ(sums, std::vector<uint64_t>(static_cast<size_t>(size), expected));
  expectNoErrors(ManyRanks::onAll(
      members, [&](Group& group, int, Done done) { group.barrier(kNoHurry, std::move(done)); }));
  for (const auto& group : members) group->shutdown();
}

}  // namespace
}  // namespace topoopt
