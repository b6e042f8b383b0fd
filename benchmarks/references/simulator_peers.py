"""Recorded times of other simulators for the workloads of benchmarks/simulators.py.

CPU seconds of the simulation loop (the least of 2 to 6 runs), packet-hops per CPU second, peak
memory and simulated time, measured once on `MACHINE` with the public versions named in `VERSIONS`.
They compare with ours as ratios only, unless this is that machine.
"""

from __future__ import annotations

from dataclasses import dataclass

MACHINE = "2 cores of a Xeon with AVX-512"
VERSIONS = (
    "htsim: csg-htsim 841d9e7, SimGrid 4.1 (equal weights), ns-3 3.44 (release build), "
    "FlexNetPacket 461b21f, plain: a C++ max-min that solves all rates anew at every event"
)


@dataclass(frozen=True)
class PeerRun:
    """`transport` None: flow level. Figures that were not recorded are None."""

    workload: str
    simulator: str
    transport: str | None
    cpu_s: float
    completion_ms: float | None = None
    packet_hops_per_s: float | None = None
    memory_mb: float | None = None

    @property
    def level(self) -> str:
        return "flow" if self.transport is None else "packet"


# FlexNetPacket's senders are a variant of DCTCP, ns-3's were Reno on rings and DCTCP elsewhere.
RECORDED = (
    PeerRun("ring-128", "SimGrid", None, 0.023),
    PeerRun("ring-128", "plain", None, 0.003, 16.129),
    PeerRun("ring-128", "htsim", "roce", 0.87, 16.34744, 3.3e6, 47),
    PeerRun("ring-128", "htsim", "dctcp", 0.74, 17.0383, 4.0e6, 40),
    PeerRun("ring-128", "htsim", "ndp", 29.6, 16.34744, 0.10e6, 508),
    PeerRun("ring-128", "FlexNetPacket", "dctcp", 0.68, 16.4870, 4.2e6, 33),
    PeerRun("ring-128", "ns-3", "dctcp", 62, 16.2215, 0.046e6, 392),
    PeerRun("circulant-128", "SimGrid", None, 0.117),
    PeerRun("circulant-128", "plain", None, 0.033, 4.22276),
    PeerRun("circulant-128", "htsim", "roce", 1.37, 4.27736, 2.1e6, 177),
    PeerRun("circulant-128", "htsim", "dctcp", 1.17, 4.9683, 2.8e6, 146),
    PeerRun("circulant-128", "htsim", "ndp", 59.3, 4.27736, 0.05e6, 725),
    PeerRun("circulant-128", "FlexNetPacket", "dctcp", 1.81, 4.5028, 1.6e6, 116),
    PeerRun("circulant-128", "ns-3", "dctcp", 78, 4.2461, 0.037e6, 507),
    PeerRun("all-to-all-ecmp", "SimGrid", None, 0.119),
    PeerRun("all-to-all-ecmp", "plain", None, 0.014),
    PeerRun("all-to-all-ecmp", "htsim", "roce", 1.71, None, 1.0e6, 173),
    PeerRun("all-to-all-ecmp", "htsim", "dctcp", 1.17, None, 1.5e6, 24),
    PeerRun("all-to-all-ecmp", "htsim", "ndp", 5.85, None, 0.32e6, 104),
    PeerRun("all-to-all-ecmp", "ns-3", "dctcp", 40, None, 0.043e6, 173),
    PeerRun("all-to-all-distinct", "SimGrid", None, 2.1),
    PeerRun("all-to-all-distinct", "plain", None, 0.41),
    PeerRun("permutation", "htsim", "roce", 0.88, None, 1.5e6, 35),
    PeerRun("permutation", "htsim", "dctcp", 0.66, None, 2.0e6, 7),
    PeerRun("permutation", "htsim", "ndp", 1.13, None, 1.4e6, 19),
    PeerRun("permutation", "ns-3", "dctcp", 22, None, 0.060e6, 370),
    PeerRun("fat-tree-all-to-all", "SimGrid", None, 4.05),
    PeerRun("fat-tree-all-to-all", "plain", None, 0.23),
    # Its own task graph of DLRM on this network: 64 tables, 44.1 M packet-hops, 2.63 M flows. Its
    # simulated time has the computation in it, so it is not shown.
    PeerRun("dlrm-128", "FlexNetPacket", "dctcp", 60.9, None, 44.1e6 / 60.9, 2200),
)


def recorded_runs(workload: str, level: str, transport: str | None) -> list[PeerRun]:
    """The recorded runs that a run of ours compares with. Those of htsim's RoCE, which has no
    congestion control, compare with `constant` as well."""
    wanted = "roce" if transport == "constant" else transport
    return [
        run
        for run in RECORDED
        if (run.workload, run.level) == (workload, level)
        and (level == "flow" or run.transport == wanted)
    ]
