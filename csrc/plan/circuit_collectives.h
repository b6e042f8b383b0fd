// AllReduce, AllGather, ReduceScatter and Broadcast over moving circuits: on each topology, servers
// send blocks of the message to the receivers of the current circuits. A server is its leader, the
// first member on it. Before the first hops, leaders add or collect the data of their other
// members; after the last ones, they pass the results on.

#pragma once

#include <vector>

#include "plan/group_layout.h"
#include "plan/schedule.h"
#include "plan/schedule_cache.h"

namespace topoopt {

// Block `block` of part `part` of the message. With `reduces`, the receiver adds it to its own.
// Servers are places in GroupLayout::leaders().
struct BlockHop {
  int sender;
  int receiver;
  int block;
  int part;
  bool reduces;
};

// The message has `parts` parts of nearly equal size, and each part `blocks` blocks: one, or one
// per server. Block i of an all_gather or a reduce_scatter is that of the members on server i, else
// blocks have nearly equal sizes. The root of a broadcast is on server 0. Each topology has its
// hops in the order of the sends.
struct BlockProgram {
  int parts = 1;
  int blocks = 1;
  std::vector<std::vector<BlockHop>> topologies{};
};

// The schedule of member `rank` on each topology, with the buffers of the static schedules of these
// collectives. In a broadcast from another server, all servers of the program shift by that one.
// Topologies share scratch memory. Lane::part is `counter`. Throws std::invalid_argument for hops
// that do not fit the collective.
std::vector<Schedule> circuitCollectiveSchedules(const BlockProgram& program,
                                                 const GroupLayout& layout, int rank,
                                                 const ScheduleKey& key, int counter = 0);

}  // namespace topoopt
