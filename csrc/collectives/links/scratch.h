// Scratch memory shared by the operations of a group in turn. It grows to the largest need (at most
// kScratchLimitBytes, see plan/schedule.h) and is freed when idle.

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

  // Returns memory for the next operation, until finished(); its content is undefined.
  std::byte* reserve(size_t bytes);

  void finished();

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
