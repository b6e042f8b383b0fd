"""State on hosts: its memory, its copies, and the steps of the optimizer there."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search.layouts.decoders import ELEMENT_BYTES, decoder, parameters
from support.refusals import refused

from torch_topoopt.plan import Cluster
from torch_topoopt.plan.layout import Layout
from torch_topoopt.search.accelerators import DEVICES, HostMemory, accelerator
from torch_topoopt.search.layouts.host_state import copy_seconds, host_seconds, usable_host_bytes
from torch_topoopt.search.layouts.links import Boxes
from torch_topoopt.search.layouts.prices import LayoutPrice, LayoutPrices
from torch_topoopt.search.layouts.software import WITHOUT_OVERHEADS
from torch_topoopt.search.layouts.state import ADAMW, StateBytes

BOXES = Boxes(8, 1e15, 1e15, 0.0, 0.0, 0.0)  # exchanges take no time
OFFLOADED = Layout(data=8, sharding="parameters", state_shards=8, offload="host")


def prices(host: HostMemory, state: StateBytes = ADAMW) -> LayoutPrices:
    device = replace(accelerator("h100:bf16"), host=host)
    return LayoutPrices(decoder(4), device, BOXES, software=WITHOUT_OVERHEADS, state=state)


def price(layout: Layout, host: HostMemory | None = None) -> LayoutPrice:
    found = prices(host or HostMemory(1e12, 1e11, 1e11)).price(layout)
    assert found is not None
    return found


def test_state_leaves_the_accelerator() -> None:
    memory = price(OFFLOADED).memory
    assert (memory.parameters, memory.gradients, memory.optimizer) == (0, 0, 0)
    assert memory.host == pytest.approx(parameters() * 16 / 8)
    kept = price(replace(OFFLOADED, offload="none")).memory
    assert kept.host == 0
    assert kept.total - memory.total == pytest.approx(memory.host)
    assert (memory.gathered, memory.activations) == (kept.gathered, kept.activations)


def test_replicas_sum_several_gradients_on_the_accelerator() -> None:
    hybrid = replace(OFFLOADED, state_shards=4)
    assert price(hybrid).memory.gradients == 0
    several = price(replace(hybrid, micro_batches=2)).memory
    assert several.gradients == pytest.approx(parameters() * ELEMENT_BYTES / 4)
    assert price(replace(OFFLOADED, micro_batches=2)).memory.gradients == 0


def test_one_accelerator_gathers_from_its_host() -> None:
    alone = Layout(sharding="parameters", offload="host")
    memory = price(alone).memory
    assert memory.host == pytest.approx(parameters() * 16)
    assert 0 < memory.gathered < parameters() * ELEMENT_BYTES
    kept = price(replace(alone, reshard=False)).memory
    assert kept.gathered == pytest.approx(parameters() * ELEMENT_BYTES)


def test_the_host_steps_at_the_rate_of_its_memory() -> None:
    host = HostMemory(1e12, 1e10, 1e15)
    trained = parameters() * ELEMENT_BYTES / 8
    seconds = price(OFFLOADED, host).times.optimizer_s
    assert seconds == pytest.approx(host_seconds(host, trained * ADAMW.moved))
    assert seconds > 100 * price(replace(OFFLOADED, offload="none")).times.optimizer_s


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize(("shards", "micro_batches"), [(8, 1), (8, 3), (4, 3), (1, 1), (1, 3)])
def test_on_a_slow_link_an_iteration_takes_its_copies(
    shards: int, micro_batches: int, *, reshard: bool
) -> None:
    """Each gather copies parameters. Gradients are copied to the host for each micro-batch, or
    once if replicas are summed first."""
    layout = Layout(
        data=8, sharding="parameters", state_shards=shards, reshard=reshard,
        micro_batches=micro_batches, offload="host",
    )  # fmt: skip
    host = HostMemory(1e12, 1e15, 1e6)
    copy_s = copy_seconds(host, parameters() * ELEMENT_BYTES / shards)
    gathers = micro_batches * (1 + reshard)
    returns = micro_batches if shards == 8 else 1
    step_s = price(layout, host).times.step_s
    assert step_s >= copy_s * max(gathers, returns)
    assert step_s <= 1.01 * copy_s * (gathers + returns)


def test_several_micro_batches_wait_for_their_sum_on_the_host() -> None:
    slow, fast = HostMemory(1e12, 1e6, 1e15), HostMemory(1e12, 1e15, 1e15)
    layout = replace(OFFLOADED, micro_batches=4)
    waited_s = price(layout, slow).times.step_s - price(layout, fast).times.step_s
    trained = parameters() * ELEMENT_BYTES / 8
    expected_s = host_seconds(slow, trained * (3 * ADAMW.summed + ADAMW.moved))
    assert waited_s == pytest.approx(expected_s, rel=1e-3)


def test_parameters_of_32_bits_are_copied_as_they_are() -> None:
    host = HostMemory(1e12, 1e15, 1e6)
    layout = replace(OFFLOADED, reshard=False)
    found = [
        prices(host, ADAMW._replace(stored=stored)).price(layout).times.step_s  # type: ignore[union-attr]
        for stored in (1.0, 2.0)
    ]
    copy_s = copy_seconds(host, parameters() * ELEMENT_BYTES / 8)
    assert found[1] - found[0] == pytest.approx(copy_s, rel=0.01)


def test_what_a_host_lacks_does_not_fit() -> None:
    of = prices(HostMemory(1e12, 1e11, 1e11))
    found = of.price(OFFLOADED)
    assert found is not None
    assert of.fits(found, found.memory.total)
    assert of.state_fits(OFFLOADED, found.memory.total)
    of.host_bytes = 0.99 * found.memory.host
    assert not of.fits(found, found.memory.total)
    assert not of.state_fits(OFFLOADED, found.memory.total)


def test_the_memory_of_a_host_is_that_of_the_cluster_or_of_the_usual_box() -> None:
    device = accelerator("rtx-4090:bf16")
    four = Cluster(1, 1, 10.0, accelerators_per_server=4, accelerator="rtx-4090:bf16")
    assert usable_host_bytes(device, four) == pytest.approx(0.9 * 64e9)
    assert usable_host_bytes(device, replace(four, host_memory_gb=512)) == pytest.approx(
        0.9 * 128e9
    )
    assert usable_host_bytes(device, replace(four, memory_limited=False)) == math.inf


@pytest.mark.parametrize("name", ["gb10", "cpu-core"])
def test_without_memory_of_its_own_nothing_is_offloaded(name: str) -> None:
    device = accelerator(name)
    assert device.host is None
    assert usable_host_bytes(device, Cluster(1, 1, 10.0, memory_limited=False)) == 0
    of = LayoutPrices(decoder(4), device, BOXES)
    with refused(ValueError, "offload", "host", "none"):
        of.price(OFFLOADED)


def test_all_other_devices_have_hosts_slower_than_their_memory() -> None:
    for name, device in DEVICES.items():
        if name in ("gb10", "cpu-core"):
            continue
        assert device.host is not None, name
        assert device.host.link_bytes_per_s < device.memory_bytes_per_s
        assert device.host.memory_bytes_per_s < device.memory_bytes_per_s
