// Opens the link of a specification with the transport that it names.

#pragma once

#include <memory>

#include "transport/links/link.h"

namespace topoopt {

// Takes over what `spec` names. Throws std::invalid_argument or std::system_error.
std::unique_ptr<Link> openLink(const LinkSpec& spec, const Link::Context& context);

}  // namespace topoopt
