// The processors of a network interface's memory node.

#pragma once

#include <sched.h>

#include <filesystem>
#include <optional>
#include <string>

namespace topoopt {

// Parses the kernel's list of processors ("0-3,8"); nullopt if invalid or empty.
std::optional<cpu_set_t> processorsOf(const std::string& list);

// Returns the processors near the interface with this index. nullopt for an interface without a
// device (loopback, veth), or at an unknown place. `system`: the path of sysfs.
std::optional<cpu_set_t> processorsNear(int interface,
                                        const std::filesystem::path& system = "/sys");

// Restricts the calling thread to those of `processors` that it may use, if any.
void stayOn(const cpu_set_t& processors);

}  // namespace topoopt
