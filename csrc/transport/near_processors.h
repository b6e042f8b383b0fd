// The processors next to a network interface: those of its memory node.

#pragma once

#include <sched.h>

#include <filesystem>
#include <optional>
#include <string>

namespace topoopt {

// The processors of a list as the kernel writes it ("0-3,8"); nullopt if it is none, or empty.
std::optional<cpu_set_t> processorsOf(const std::string& list);

// Those that the kernel names for the device of the interface with this number; nullopt where there
// is no such device, as of loopback and veth, or its place is not known. `system`: where sysfs is.
std::optional<cpu_set_t> processorsNear(int interface,
                                        const std::filesystem::path& system = "/sys");

// Keeps the calling thread on those of `processors` that it may use, if there are any.
void stayOn(const cpu_set_t& processors);

}  // namespace topoopt
