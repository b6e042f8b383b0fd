"""The devices that can be named, from data sheets.

Peaks are dense, with FP32 accumulation, of the largest version unless the name says otherwise.
Sources are the vendors' data sheets and white papers:

- a100, a100-40gb, h100, h200: SXM boards. h100-500w: the 96 GB board with HBM2e and a limit of
  500 W that torchtitan's performance pages describe.
- b200, b300: HGX boards. gb200, gb300: one GPU of an NVL72 rack. mi300x: OAM.
- l40s, a6000 (Ampere), rtx-6000-ada and the GeForce cards: PCIe.
- gb10: the chip of a DGX Spark. Its sheet gives 1 PFLOP/s of sparse FP4; BF16 is an eighth of it,
  as on other Blackwell chips, and TF32 half of that.

Hosts are those of the usual servers. Sources are the data sheets of servers and processors: memory
channels times their rate, and PCIe 4.0 or 5.0 with 16 lanes (31.5 or 63 GB/s after encoding).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Format = Literal["fp32", "tf32", "bf16", "fp8", "fp4"]
FORMATS: tuple[Format, ...] = ("fp32", "tf32", "bf16", "fp8", "fp4")
Generation = Literal["ampere", "hopper", "blackwell", "cdna3"]


class Peaks(NamedTuple):
    """FLOP/s of each format; 0 where a device has no units for it."""

    fp32: float
    tf32: float
    bf16: float
    fp8: float = 0.0
    fp4: float = 0.0


class Box(NamedTuple):
    """The usual server of a device: its accelerators, and the links that join them.

    "pcie" joins them through the bridges of the host; "none": there is one.
    """

    accelerators: int
    joined_by: Literal["nvlink", "xgmi", "pcie", "none"]


ALONE = Box(1, "none")


class HostMemory(NamedTuple):
    """The part of a server's host that one accelerator has: bytes of memory, their bytes per
    second, and bytes per second of its link to the accelerator, each way."""

    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float

    def shared_by(self, accelerators: int) -> HostMemory:
        """The part of each of these, which all have links of their own."""
        memory_bytes, memory_bytes_per_s, link_bytes_per_s = self
        return HostMemory(
            memory_bytes / accelerators, memory_bytes_per_s / accelerators, link_bytes_per_s
        )


class Device(NamedTuple):
    """A row of the table: bytes per second of the memory, bytes, bytes per second to a peer, each
    way.

    `processors` are streaming multiprocessors or compute units. `sustained` is the fraction of the
    peaks of bf16 and narrower formats that large matrix products keep. `generation` selects the
    efficiency of attention. `reserved_bytes` of the memory belong to the runtime, and to the
    operating system where it has no memory of its own. Without a `host`, the accelerator has no
    other memory than its host's.
    """

    peaks: Peaks
    memory_bytes_per_s: float
    memory_bytes: int
    peer_bytes_per_s: float
    processors: int
    sustained: float
    generation: Generation
    box: Box
    reserved_bytes: int = 3 * 2**29  # a context of CUDA, cuBLAS and NCCL
    host: HostMemory | None = None

    def formats(self) -> tuple[Format, ...]:
        """The formats that the device has units for."""
        return tuple(name for name in FORMATS if getattr(self.peaks, name))


_GIB = 2**30
_HGX = Box(8, "nvlink")
_NVL = Box(4, "nvlink")  # a compute tray; NVLink joins 18 of them
_OAM = Box(8, "xgmi")
_CARDS = Box(8, "pcie")
_DESKTOP = Box(4, "pcie")

_PCIE_4, _PCIE_5 = 31.5e9, 63e9
_DGX_A100 = HostMemory(2e12, 2 * 204.8e9, _PCIE_4).shared_by(8)  # two EPYC 7742: DDR4-3200
_DGX_A100_40GB = HostMemory(1e12, 2 * 204.8e9, _PCIE_4).shared_by(8)
_DGX_H100 = HostMemory(2e12, 2 * 307.2e9, _PCIE_5).shared_by(8)  # two Xeon 8480C: DDR5-4800
_DGX_B200 = HostMemory(2e12, 2 * 358.4e9, _PCIE_5).shared_by(8)  # two Xeon 8570: DDR5-5600
_DGX_B300 = HostMemory(2e12, 2 * 409.6e9, _PCIE_5).shared_by(8)  # two Xeon 6776P: DDR5-6400
# Two GPUs share a Grace and its NVLink-C2C: 450 GB/s each way.
_GRACE = HostMemory(480e9, 512e9, 450e9 / 2).shared_by(2)
_MI300X_BOX = HostMemory(2.3e12, 2 * 460.8e9, _PCIE_5).shared_by(8)  # two EPYC 9004: DDR5-4800
# The memory of servers and workstations with cards differs: 2 bytes for each of the cards' in
# servers, 256 GB in workstations (assumed). Processors: two Xeon with DDR5-4800, Threadripper PRO
# 5000 with DDR4-3200, and 7000 with DDR5-5200.
_CARD_SERVER = HostMemory(768e9, 2 * 307.2e9, _PCIE_4).shared_by(8)
_DDR4_WORKSTATION = HostMemory(256e9, 204.8e9, _PCIE_4).shared_by(4)
_WORKSTATION = HostMemory(256e9, 332.8e9, _PCIE_4).shared_by(4)
_PCIE_5_WORKSTATION = HostMemory(256e9, 332.8e9, _PCIE_5).shared_by(4)

# `sustained`: in short runs, the best products reach 0.86 of the peak on an A100, 0.80 on an H100,
# 0.58 on an MI300X, 0.70 on an L40S, 0.76 on an RTX 6000 Ada, and more than the peak, by higher
# clocks, on an RTX 3090 and 4090 (github.com/mag-/gpu_benchmark). In training the clock falls with
# the power limit. Figures of A100, H100, H200, B200, GB200, GB300, GB10 and RTX 4090 agree with
# measured steps of language models that take little communication. The others follow from them:
# - h100-500w: power grows with the clock to the power of 2.5 or so, which leaves 0.87 of an H100's.
# - b300: as b200.
# - The rest keeps 0.85 of the short runs or of the sheet, less where a board reaches its limit.
_A100 = Peaks(19.5e12, 156e12, 312e12)
_H100 = Peaks(67e12, 494.5e12, 989e12, 1979e12)

# fmt: off
DEVICES: dict[str, Device] = {
    # One core with 8-wide FP32 fused multiply-add units at 3 GHz and its share of the memory.
    "cpu-core": Device(Peaks(96e9, 96e9, 96e9), 10e9, 4 * _GIB, 10e9, 1, 0.85, "ampere", ALONE, 0),
    "a100": Device(_A100, 2.039e12, 80 * _GIB, 300e9, 108, 0.82, "ampere", _HGX, host=_DGX_A100),
    "a100-40gb": Device(
        _A100, 1.555e12, 40 * _GIB, 300e9, 108, 0.82, "ampere", _HGX, host=_DGX_A100_40GB
    ),
    "h100": Device(_H100, 3.35e12, 80 * _GIB, 450e9, 132, 0.62, "hopper", _HGX, host=_DGX_H100),
    "h100-500w": Device(_H100, 2.4e12, 96 * _GIB, 450e9, 132, 0.54, "hopper", _HGX, host=_DGX_H100),
    "h200": Device(_H100, 4.8e12, 141 * 10**9, 450e9, 132, 0.69, "hopper", _HGX, host=_DGX_H100),
    "b200": Device(
        Peaks(75e12, 1100e12, 2250e12, 4500e12, 9000e12),
        8.0e12, 180 * 10**9, 900e9, 148, 0.66, "blackwell", _HGX,
        host=_DGX_B200,
    ),
    "b300": Device(
        Peaks(75e12, 1100e12, 2250e12, 4500e12, 13500e12),
        8.0e12, 270 * 10**9, 900e9, 148, 0.66, "blackwell", _HGX,
        host=_DGX_B300,
    ),
    "gb200": Device(
        Peaks(80e12, 1250e12, 2500e12, 5000e12, 10000e12),
        8.0e12, 186 * 10**9, 900e9, 148, 0.6, "blackwell", _NVL,
        host=_GRACE,
    ),
    "gb300": Device(
        Peaks(80e12, 1250e12, 2500e12, 5000e12, 15000e12),
        8.0e12, 279 * 10**9, 900e9, 148, 0.7, "blackwell", _NVL,
        host=_GRACE,
    ),
    "gb10": Device(
        Peaks(31e12, 62.5e12, 125e12, 250e12, 500e12),
        273e9, 128 * 10**9, 273e9, 48, 0.5, "ampere", ALONE, 8 * _GIB,
    ),
    "rtx-3090": Device(
        Peaks(35.6e12, 35.6e12, 71e12), 936e9, 24 * _GIB, 32e9, 82, 0.85, "ampere", _DESKTOP,
        host=_DDR4_WORKSTATION,
    ),
    "rtx-4090": Device(
        Peaks(82.6e12, 82.6e12, 165.2e12, 330.3e12),
        1.008e12, 24 * _GIB, 32e9, 128, 0.85, "ampere", _DESKTOP,
        host=_WORKSTATION,
    ),
    "rtx-5090": Device(
        Peaks(104.8e12, 104.8e12, 209.5e12, 419e12, 1676e12),
        1.792e12, 32 * _GIB, 64e9, 170, 0.85, "ampere", _DESKTOP,
        host=_PCIE_5_WORKSTATION,
    ),
    "a6000": Device(
        Peaks(38.7e12, 77.4e12, 154.8e12), 768e9, 48 * _GIB, 32e9, 84, 0.72, "ampere", _DESKTOP,
        host=_DDR4_WORKSTATION,
    ),
    "rtx-6000-ada": Device(
        Peaks(91.1e12, 182.1e12, 364.2e12, 728.5e12),
        960e9, 48 * _GIB, 32e9, 142, 0.65, "ampere", _DESKTOP,
        host=_WORKSTATION,
    ),
    "l40s": Device(
        Peaks(91.6e12, 183e12, 362e12, 733e12),
        864e9, 48 * _GIB, 32e9, 142, 0.6, "ampere", _CARDS,
        host=_CARD_SERVER,
    ),
    "mi300x": Device(
        Peaks(163.4e12, 653.7e12, 1307.4e12, 2614.9e12),
        5.3e12, 192 * 10**9, 448e9, 304, 0.5, "cdna3", _OAM,
        host=_MI300X_BOX,
    ),
}
# fmt: on
