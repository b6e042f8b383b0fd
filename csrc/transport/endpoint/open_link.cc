#include "transport/endpoint/open_link.h"

#include <stdexcept>
#include <string>

#include "transport/libfabric/link.h"
#include "transport/shm/link.h"
#include "transport/tcp/link.h"
#include "transport/tcp/threaded_link.h"
#include "transport/tls/link.h"

namespace topoopt {

std::unique_ptr<Link> openLink(const LinkSpec& spec, const Link::Context& context) {
  const bool fabric = spec.kind == LinkKind::kFabric;
  if (spec.cable != kNoCable && spec.kind != LinkKind::kSocket && !fabric) {
    throw std::invalid_argument("cable: only a link over a socket or libfabric has one");
  }
  if (spec.provider.empty() == fabric) {
    throw std::invalid_argument("provider: a link over libfabric has one, and no other kind");
  }
  if (!spec.tls_key.empty() && spec.kind != LinkKind::kSocket) {
    throw std::invalid_argument("tls_key: only a link over a socket has one");
  }
  switch (spec.kind) {
    case LinkKind::kSocket:
      if (!spec.tls_key.empty()) return std::make_unique<TlsLink>(spec, context);
      if (spec.threads) return std::make_unique<ThreadedLink>(spec, context);
      return std::make_unique<TcpLink>(spec, context);
    case LinkKind::kSharedMemory:
      return std::make_unique<ShmLink>(spec, context);
    case LinkKind::kFabric:
      return std::make_unique<FabricLink>(spec, context);
  }
  throw std::invalid_argument("kind of link: " + std::to_string(static_cast<int>(spec.kind)));
}

}  // namespace topoopt
