// Chooses the engine of a group.

#include <utility>

#include "collectives/group/group.h"
#include "collectives/links/link_group.h"
#include "collectives/memory/shared_memory_group.h"

namespace topoopt {

std::shared_ptr<Group> Group::open(std::shared_ptr<Endpoint> endpoint, GroupConfig config) {
  std::shared_ptr<Group> group;
  if (config.segment_fd < 0) {
    group = std::make_shared<LinkGroup>(std::move(endpoint), std::move(config));
  } else {
    group = std::make_shared<SharedMemoryGroup>(std::move(endpoint), std::move(config));
  }
  group->endpoint_->reactor().run([&] {
    group->endpoint_->openChannel(group->config_.channel, group->channelEvents());
    group->onOpened();
  });
  return group;
}

}  // namespace topoopt
