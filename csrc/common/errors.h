// Errors of communication, which the affected operation reports to its caller.

#pragma once

#include <cerrno>
#include <exception>
#include <stdexcept>
#include <string>
#include <system_error>

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

// A failed system call, named by `what`.
[[noreturn]] inline void throwErrno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace topoopt
