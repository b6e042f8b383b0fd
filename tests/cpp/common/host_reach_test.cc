// What is sure to be reachable by the host is used where it is; everything else is copied.

#include "common/host_reach.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>

namespace topoopt {
namespace {

// What a driver knows of the one address that is asked about.
struct Known {
  int error = 0;
  uint32_t type = 0;
  void* host = nullptr;
  bool managed = false;
  int flags_error = 0;
  unsigned flags = 0;
  std::set<int> attributes{};  // of the device
};
Known known;

int pointerAttributes(unsigned count, int* wanted, void** values, unsigned long long) {
  if (known.error != 0) return known.error;
  for (unsigned i = 0; i < count; ++i) {
    if (wanted[i] == 2) std::memcpy(values[i], &known.type, sizeof known.type);
    if (wanted[i] == 4) std::memcpy(values[i], &known.host, sizeof known.host);
    const uint32_t managed = known.managed ? 1 : 0;
    if (wanted[i] == 8) std::memcpy(values[i], &managed, sizeof managed);
  }
  return 0;
}

int hostFlags(unsigned* flags, void*) {
  *flags = known.flags;
  return known.flags_error;
}

int deviceOf(int* device, int ordinal) {
  *device = ordinal + 10;
  return 0;
}

int deviceAttribute(int* value, int attribute, int device) {
  *value = device == 13 && known.attributes.contains(attribute) ? 1 : 0;
  return 0;
}

constexpr int kConcurrent = 89;
constexpr int kIntegrated = 18;
constexpr int kDirect = 101;
constexpr int kPageTables = 100;

HostReach reach(const Known& what, void* memory, bool registers = false) {
  known = what;
  return reachByCuda({pointerAttributes, hostFlags, deviceOf, deviceAttribute}, memory, 3,
                     registers);
}

TEST(HostReach, HostMemoryIsUsedAtTheAddressThatTheHostHas) {
  int there = 0;
  int elsewhere = 0;
  EXPECT_EQ(reach({.type = 1, .host = &there}, &there).memory, &there);
  EXPECT_EQ(reach({.type = 1, .host = &elsewhere}, &there).memory, &elsewhere);
  const Known registered{.type = 1, .host = &there, .flags_error = 1};
  EXPECT_EQ(reach(registered, &there).memory, &there);
  EXPECT_EQ(reach({.type = 1, .host = &there}, &there, true).memory, &there);
  EXPECT_EQ(reach({.type = 1, .host = &there, .flags = 0x4}, &there).memory, nullptr);
}

TEST(HostReach, MemoryOfTheDeviceIsCopiedWhateverTheDeviceCanDo) {
  int there = 0;
  const std::set<int> all{kConcurrent, kIntegrated, kDirect, kPageTables};
  const HostReach found = reach({.type = 2, .host = nullptr, .attributes = all}, &there);
  EXPECT_EQ(found.memory, nullptr);
  EXPECT_EQ(std::string(found.what), "memory of the device alone");
  EXPECT_EQ(reach({.type = 2, .host = &there, .attributes = all}, &there).memory, nullptr);
  EXPECT_EQ(reach({.error = 1, .type = 1, .host = &there}, &there).memory, nullptr);
}

TEST(HostReach, ManagedMemoryIsUsedWhereItStaysAndMayBeTouchedAtAnyTime) {
  int there = 0;
  for (const uint32_t type : {1, 2}) {
    const auto managed = [&](std::set<int> attributes, bool registers = false) {
      return reach({.type = type, .host = &there, .managed = true, .attributes = attributes},
                   &there, registers)
          .memory;
    };
    EXPECT_EQ(managed({kConcurrent, kIntegrated}), &there);
    EXPECT_EQ(managed({kConcurrent, kDirect}), &there);
    EXPECT_EQ(managed({kConcurrent, kIntegrated}, true), nullptr);
    EXPECT_EQ(managed({kConcurrent}), nullptr);
    EXPECT_EQ(managed({kIntegrated, kDirect, kPageTables}), nullptr);
    EXPECT_EQ(managed({}), nullptr);
  }
}

TEST(HostReach, MemoryOfTheProcessIsUsedByDevicesThatShareItsPageTables) {
  int there = 0;
  EXPECT_EQ(reach({.attributes = {kPageTables}}, &there).memory, &there);
  EXPECT_EQ(reach({.attributes = {kIntegrated, kConcurrent}}, &there).memory, nullptr);
}

// A container may forbid the call, and QEMU's user mode does not have it.
bool kernelReadsMemory() {
  char from = 0;
  char to = 0;
  const iovec source{&from, 1};
  const iovec target{&to, 1};
  return process_vm_readv(getpid(), &target, 1, &source, 1, 0) == 1;
}

TEST(HostReach, TheKernelConfirmsBothEnds) {
  if (!kernelReadsMemory()) GTEST_SKIP() << "process_vm_readv: " << std::strerror(errno);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  const auto confirmed = [](std::byte* begin, size_t bytes) {
    return confirmedByKernel({begin, "memory"}, bytes).memory;
  };
  EXPECT_EQ(confirmed(pages, 3 * page), pages);
  EXPECT_EQ(confirmed(pages + 1, 1), pages + 1);
  ASSERT_EQ(mprotect(pages + 2 * page, page, PROT_NONE), 0);
  EXPECT_EQ(confirmed(pages, 2 * page), pages);
  EXPECT_EQ(confirmed(pages, 2 * page + 1), nullptr) << "the last byte may not be read";
  EXPECT_EQ(confirmed(pages + 2 * page, 1), nullptr);
  ASSERT_EQ(munmap(pages, page), 0);
  EXPECT_EQ(confirmed(pages, 2 * page), nullptr) << "the first byte is gone";
  EXPECT_STREQ(confirmedByKernel({nullptr, "why"}, 1).what, "why");
  ASSERT_EQ(munmap(pages + page, 2 * page), 0);
}

TEST(HostReach, NoDriverIsLoadedForTheQuestion) { EXPECT_FALSE(CudaDriver::loaded().has_value()); }

}  // namespace
}  // namespace topoopt
