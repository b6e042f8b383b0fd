"""The cost of an operator on an accelerator: a roofline whose peaks come from data sheets.

A device has a peak for each number format, and a memory bandwidth (devices.py). The fraction that
an operator reaches depends on its class (classes.py), and in bf16 and narrower formats on its shape
(products.py, attention.py). The fractions of classes are fitted to measurements on an A100
(benchmarks/cost_calibration.py) and assumed to hold on other devices.

An accelerator is named DEVICE or DEVICE:FORMAT. FORMAT selects the units for matrix products:

- fp32, the default: PyTorch's defaults for a float32 model. Dense layers use the FP32 units;
  convolutions and attention use the tensor cores in TF32, if any. The paper measured like this.
- tf32: everything on tensor cores, from float32 (`torch.set_float32_matmul_precision("high")`).
- bf16: everything on tensor cores in BF16 or FP16. The bytes of an OpGraph stay those of the
  profiled model: profile one of that type.
- fp8, fp4: as bf16, but layers with parameters multiply in FP8 (also MXFP8) or FP4 (NVFP4), and
  cast what they multiply. The output layer and attention stay in BF16.

"cpu" is this machine, measured at run time (cpu_roofline.py).
"""

from __future__ import annotations

from functools import cache

from torch_topoopt.search.accelerators.attention import KernelName, kernel_of
from torch_topoopt.search.accelerators.classes import (
    FITTED,
    ClassName,
    OperatorClass,
    Pass,
    class_of,
    reads_all_parameters,
)
from torch_topoopt.search.accelerators.devices import DEVICES, FORMATS, Device, Format, HostMemory
from torch_topoopt.search.accelerators.roofline import (
    Accelerator,
    estimated_seconds,
    loss_seconds,
    operator_seconds,
)
from torch_topoopt.search.accelerators.tensor_cores import BANDWIDTH, TensorCores

__all__ = [
    "BANDWIDTH",
    "DEVICES",
    "FITTED",
    "FORMATS",
    "Accelerator",
    "ClassName",
    "HostMemory",
    "OperatorClass",
    "Pass",
    "accelerator",
    "class_of",
    "estimated_seconds",
    "in_format",
    "loss_seconds",
    "names",
    "operator_seconds",
    "reads_all_parameters",
]

_BITS: dict[Format, int] = {"bf16": 16, "fp8": 8, "fp4": 4}


def names() -> tuple[str, ...]:
    """The names of accelerators, without formats; "cpu" is this machine's."""
    return (*DEVICES, "cpu")


def accelerator(name: str, attention: KernelName | None = None) -> Accelerator:
    """The device DEVICE or DEVICE:FORMAT; raises ValueError listing the known ones.

    `attention` is the kernel in bf16 and narrower formats, by default that of PyTorch.
    """
    device, _, chosen = name.partition(":")
    if name == "cpu":
        return _this_cpu()
    if device == "cpu":
        raise ValueError(f"accelerator: {name!r}: the cpu is measured in fp32; leave :{chosen} out")
    if device not in DEVICES:
        raise ValueError(f"accelerator: {device!r} is not known; use one of {', '.join(names())}")
    row = DEVICES[device]
    for number_format in row.formats():
        if number_format == (chosen or "fp32"):
            return _accelerator(row, number_format, attention)
    raise ValueError(
        f"accelerator: {chosen!r} in {name!r} is not one of {', '.join(row.formats())}"
    )


def in_format(name: str, number_format: Format) -> str:
    """DEVICE as DEVICE:FORMAT for a model in `number_format`, unless `name` has a format or the
    device lacks this one."""
    row = DEVICES.get(name)
    known = number_format != "fp32" and row is not None and number_format in row.formats()
    return f"{name}:{number_format}" if known else name


def _accelerator(row: Device, number_format: Format, attention: KernelName | None) -> Accelerator:
    peaks = row.peaks
    cores = None
    classes = FITTED
    if number_format in _BITS:
        cores = TensorCores(
            getattr(peaks, number_format),
            peaks.bf16,
            _BITS[number_format],
            row.sustained,
            row.processors,
            kernel_of(row.generation, attention),
        )
        streams = [one._replace(bandwidth=BANDWIDTH) for one in FITTED["elementwise"]]
        classes = {**FITTED, "elementwise": OperatorClass(*streams)}
    elif number_format == "tf32":  # dense layers reach the fraction that convolutions reach
        dense, on_tensor_cores = FITTED["dense"], FITTED["convolution"]
        dense = OperatorClass(
            dense.forward._replace(efficiency=on_tensor_cores.forward.efficiency),
            dense.backward._replace(efficiency=on_tensor_cores.backward.efficiency),
        )
        classes = {**FITTED, "dense": dense}
    return Accelerator(
        dense_flops=getattr(peaks, number_format),
        tensor_flops=peaks.tf32 if cores is None else peaks.bf16,
        memory_bytes_per_s=row.memory_bytes_per_s,
        memory_bytes=row.memory_bytes,
        peer_bytes_per_s=row.peer_bytes_per_s,
        classes=classes,
        tensor_cores=cores,
        reserved_bytes=row.reserved_bytes,
        box=row.box,
        host=row.host,
    )


@cache
def _this_cpu() -> Accelerator:
    """Operators reach the efficiency of the measured kernels."""
    from torch_topoopt.profile.cpu_roofline import cpu_roofline

    figures = cpu_roofline()
    most = max(figures.dense_flops, figures.convolution_flops)

    def reaching(flops: float) -> OperatorClass:
        one = Pass(flops / most, 1.0, 1.0, figures.launch_s)
        return OperatorClass(one, one)

    product = reaching(figures.dense_flops)
    classes: dict[ClassName, OperatorClass] = dict.fromkeys(FITTED, product)
    classes["convolution"] = reaching(figures.convolution_flops)
    return Accelerator(
        dense_flops=most,
        tensor_flops=most,
        memory_bytes_per_s=figures.memory_bytes_per_s,
        memory_bytes=figures.memory_bytes,
        peer_bytes_per_s=figures.memory_bytes_per_s / 2,
        classes=classes,
    )
