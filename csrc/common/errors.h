// The ways in which communication fails. Each reaches the caller through the operation it broke.

#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace topoopt {

// An operation took longer than its limit.
struct TimeoutError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A rank or a link is gone; the message names it.
struct PeerLostError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline std::exception_ptr peerLost(const std::string& why) {
  return std::make_exception_ptr(PeerLostError(why));
}

// Two ranks disagree: different operations, sizes or plans.
struct MismatchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The group was aborted or shut down by this process.
struct AbortedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace topoopt
