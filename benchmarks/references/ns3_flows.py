"""A file of flows in ns-3, which benchmarks/simulators.py runs beside ours.

    pip install ns3==3.44.post0        # in an environment of its own; the build takes minutes
    PYTHON benchmarks/references/ns3_flows.py ring.txt     # PYTHON is that environment's

Point-to-point devices send packets of 8936 bytes of payload and 64 of header (62 and the 2 of PPP)
along the paths of the file, without any protocol above: as our transport `constant`. A host takes
turns, a packet each, among the flows that begin at a link; a flow starts when all that it depends
on are delivered. The event loop is ns-3's release build; what happens when a packet arrives is
compiled here. Prints JSON; `peak_memory_mb` is that of the process, most of which are a compiler
and ns-3's headers.
"""

from __future__ import annotations

import json
import resource
import sys
import time

_FLOWS = """
#include <deque>
#include <fstream>
#include <sstream>
#include <unordered_map>
namespace flow_file {
using namespace ns3;

constexpr uint32_t kPayload = 8936, kHeader = 62;

struct Flow {
  uint64_t to_send = 0, to_receive = 0;
  std::vector<int> path, dependents;  // links; flows
  int waits_for = 0;
};
std::vector<Flow> flows;
std::vector<Ptr<PointToPointNetDevice>> device_of_link;
std::vector<std::deque<uint32_t>> turns;  // per link: flows that begin there
uint64_t hops = 0, packets = 0;
int delivered = 0;
int64_t last_ps = 0;

void send(int link, Ptr<Packet> packet) {
  Ptr<PointToPointNetDevice> device = device_of_link[link];
  if (!device->Send(packet, device->GetBroadcast(), 0x0800)) std::abort();
}

// Keeps one packet behind the one that is being sent.
void pump(int link) {
  auto& waiting = turns[link];
  while (!waiting.empty() && device_of_link[link]->GetQueue()->GetNPackets() == 0) {
    const uint32_t number = waiting.front();
    waiting.pop_front();
    Flow& flow = flows[number];
    const uint32_t payload = flow.to_send < kPayload ? flow.to_send : kPayload;
    flow.to_send -= payload;
    Ptr<Packet> packet = Create<Packet>(payload + kHeader);
    FlowIdTag tag(number);
    packet->AddPacketTag(tag);
    ++packets;
    if (flow.to_send > 0) waiting.push_back(number);
    send(link, packet);
  }
}

void begun(int link, Ptr<const Packet>) { pump(link); }

void start(uint32_t number) {
  const int link = flows[number].path.front();
  turns[link].push_back(number);
  pump(link);
}

bool received(int link, Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t, const Address&) {
  ++hops;
  FlowIdTag tag;
  packet->PeekPacketTag(tag);
  Flow& flow = flows[tag.GetFlowId()];
  if (flow.path.back() != link) {
    size_t at = 0;
    while (flow.path[at] != link) ++at;
    send(flow.path[at + 1], packet->Copy());
    return true;
  }
  flow.to_receive -= packet->GetSize() - kHeader;
  if (flow.to_receive > 0) return true;
  ++delivered;
  last_ps = Simulator::Now().GetPicoSeconds();
  for (int next : flow.dependents) {
    if (--flows[next].waits_for == 0) start(next);
  }
  return true;
}

void addLink(NodeContainer& nodes, int source, int target, double bits_per_s, double latency_ns) {
  const int link = device_of_link.size();
  PointToPointHelper helper;
  helper.SetDeviceAttribute("DataRate", DataRateValue(DataRate((uint64_t)bits_per_s)));
  helper.SetDeviceAttribute("Mtu", UintegerValue(9000));
  helper.SetChannelAttribute("Delay", TimeValue(PicoSeconds((int64_t)(latency_ns * 1000))));
  helper.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("100000000p"));
  NetDeviceContainer ends = helper.Install(nodes.Get(source), nodes.Get(target));
  Ptr<PointToPointNetDevice> device = DynamicCast<PointToPointNetDevice>(ends.Get(0));
  device->TraceConnectWithoutContext("PhyTxBegin", MakeBoundCallback(&begun, link));
  ends.Get(1)->SetReceiveCallback(MakeBoundCallback(&received, link));
  device_of_link.push_back(device);
  turns.emplace_back();
}

void build(const std::string& path) {
  Time::SetResolution(Time::PS);
  std::ifstream file(path);
  std::string line, word;
  NodeContainer nodes;
  while (std::getline(file, line)) {
    std::istringstream in(line);
    if (!(in >> word)) continue;
    if (word == "nodes") {
      int count;
      in >> count;
      nodes.Create(count);
    } else if (word == "link") {
      int id, source, target;
      double bits_per_s, latency_ns;
      in >> id >> source >> target >> bits_per_s >> latency_ns;
      addLink(nodes, source, target, bits_per_s, latency_ns);
    } else if (word == "flow") {
      int id, source, target, count, other;
      double bytes;
      in >> id >> source >> target >> bytes >> word >> count;
      if (flows.size() <= (size_t)id) flows.resize(id + 1);
      Flow& flow = flows[id];
      flow.to_send = flow.to_receive = (uint64_t)bytes;
      flow.path.resize(count);
      for (int& link : flow.path) in >> link;
      in >> word >> flow.waits_for;
      for (int i = 0; i < flow.waits_for; ++i) {
        in >> other;
        if (flows.size() <= (size_t)other) flows.resize(other + 1);
        flows[other].dependents.push_back(id);
      }
    }
  }
}

void run() {
  for (uint32_t i = 0; i < flows.size(); ++i) {
    if (flows[i].waits_for == 0) start(i);
  }
  Simulator::Run();
}
}  // namespace flow_file
"""


def main() -> int:
    import cppyy
    import ns  # noqa: F401  (loads ns-3's headers and libraries into cppyy)

    cppyy.cppdef(_FLOWS)
    flow_file = cppyy.gbl.flow_file
    flow_file.build(sys.argv[1])
    began = time.process_time()
    flow_file.run()
    figures = {
        "completion_s": flow_file.last_ps / 1e12,
        "complete": flow_file.delivered == flow_file.flows.size(),
        "packets": int(flow_file.packets),
        "packet_hops": int(flow_file.hops),
        "cpu_seconds": time.process_time() - began,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
