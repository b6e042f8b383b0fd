// The links that an endpoint and its owners of state share.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/links/link.h"

namespace topoopt {

struct OpenLink {
  LinkSpec spec;
  std::unique_ptr<Link> link;
};

// In the order of the configuration. Never changes while the endpoint lives.
using OpenLinks = std::vector<OpenLink>;

// Fails the whole job, on all ranks, for this reason.
using FailJob = std::function<void(const std::string& why)>;

}  // namespace topoopt
