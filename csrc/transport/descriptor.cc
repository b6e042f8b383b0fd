#include "transport/descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace topoopt {
namespace {

struct OpenDescriptors {
  std::mutex mutex;
  std::set<int> open;
};

// Never destroyed, because threads may outlive main.
OpenDescriptors& descriptors() {
  static auto* const all = new OpenDescriptors;
  return *all;
}

void closeInChild() {
  OpenDescriptors& all = descriptors();
  for (const int fd : all.open) ::close(fd);
  all.open.clear();
  all.mutex.unlock();
}

}  // namespace

void Descriptor::remember(int fd) {
  if (fd < 0) return;
  // Forks cannot happen between a change of the list and of the descriptor.
  [[maybe_unused]] static const int registered = pthread_atfork(
      [] { descriptors().mutex.lock(); }, [] { descriptors().mutex.unlock(); }, closeInChild);
  std::lock_guard lock(descriptors().mutex);
  descriptors().open.insert(fd);
}

void Descriptor::closeNow() {
  if (fd_ < 0) return;
  std::lock_guard lock(descriptors().mutex);
  // A forked process has closed it already, and the number may belong to another file.
  if (descriptors().open.erase(fd_) > 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace topoopt
