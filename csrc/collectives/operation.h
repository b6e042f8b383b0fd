// Runs one schedule: keeps every lane's receives posted and sends what has become ready.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "common/reduce.h"
#include "plan/schedule.h"
#include "transport/endpoint.h"

namespace topoopt {

// The memory of one operation; it must stay valid until the operation is done or its channel
// closed.
struct Buffers {
  void* input = nullptr;
  void* output = nullptr;
};

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  struct Setup {
    uint32_t channel = 0;
    std::vector<int> ranks;  // the group's members as ranks of the endpoint
    Schedule schedule;
    Buffers buffers;
    DataType type = DataType::kUint8;
    ReduceOp op = ReduceOp::kSum;
    uint32_t fingerprint = 0;
  };

  Operation(Endpoint& endpoint, Setup setup, Done done);

  // Loop. `done` is called once, perhaps before this returns.
  void start();

  // Members (ranks of the endpoint) that this rank is waiting for.
  std::set<int> waitingFor() const;

 private:
  struct LaneState {
    size_t next_receive = 0;
    size_t next_send = 0;
    std::vector<bool> received;
    std::vector<bool> sent;
    bool advancing = false;
    bool again = false;
  };

  std::byte* at(const Range& range) const;
  FlowId flow(const Lane& lane, int peer) const;
  void advance(size_t lane);
  bool postReceive(size_t lane);
  bool issueSend(size_t lane);
  void onReceived(size_t lane, size_t index);
  void finish(std::exception_ptr error);

  Endpoint& endpoint_;
  const Setup setup_;
  Done done_;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<LaneState> lanes_;
  size_t left_ = 0;  // sends and receives that are not complete
};

}  // namespace topoopt
