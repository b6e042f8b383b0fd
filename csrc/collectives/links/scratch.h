// Scratch memory that the operations of a group use one after the other. It grows to what the
// largest of them needs (at most kScratchLimitBytes, see plan/schedule.h) and goes when it has not
// been used for a while.

#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>

#include "transport/reactor.h"

namespace topoopt {

// All functions are for the reactor thread.
class Scratch {
 public:
  Scratch(Reactor& reactor, std::chrono::milliseconds idle_limit)
      : reactor_(reactor), idle_limit_(idle_limit) {}

  // Memory for the next operation, until finished(); what the one before left there is gone.
  std::byte* reserve(size_t bytes);

  // The operation is over.
  void finished();

  // No operation needs it any more.
  void release();

  size_t bytes() const { return bytes_; }

 private:
  void watch();

  Reactor& reactor_;
  const std::chrono::milliseconds idle_limit_;
  std::unique_ptr<std::byte[]> memory_;
  size_t bytes_ = 0;
  bool in_use_ = false;
  bool used_ = false;  // since the timer was set
  std::optional<Reactor::TimerId> timer_;
};

}  // namespace topoopt
