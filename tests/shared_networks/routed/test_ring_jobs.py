"""Jobs as rings: what a part is, and where copies are."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.refusals import refused

from torch_topoopt.shared_networks.routed.host_fabric import HostFabric
from torch_topoopt.shared_networks.routed.ring_jobs import (
    MODELS,
    PlacedBy,
    RingJob,
    draw_jobs,
)

SECONDS = dict.fromkeys(MODELS, 1.0)


def drawn(seed: int, **other: Any) -> list[RingJob]:
    return draw_jobs(HostFabric(), list(MODELS.values()), 4, SECONDS, seed=seed, **other)


def test_parts_are_those_of_the_papers_table() -> None:
    assert {name: model.parts for name, model in MODELS.items()} == {
        "bloom": 48,
        "gpt-3": 64,
        "llama2-70b": 128,
    }
    job = drawn(0)[0]
    sent_bytes = job.rounds * job.round_bytes
    assert sent_bytes == pytest.approx(2 * (4 - 1) / 4 * 176e9 * 4 / 48)


@pytest.mark.parametrize("placed_by", ["racks", "hosts"])
def test_every_part_has_a_host_of_its_own(placed_by: PlacedBy) -> None:
    jobs = drawn(3, placed_by=placed_by)
    hosts = [host for job in jobs for host in itertools.chain(*job.copies)]
    assert len(set(hosts)) == len(hosts) == 4 * (48 + 64 + 128)
    assert all(0 <= host < 2048 for host in hosts)
    for job in jobs:
        assert [ring[0] for ring in job.rings] == list(job.copies[0])
        assert all(len(ring) == 4 for ring in job.rings)


def test_a_copy_by_racks_leaves_at_most_its_last_tor_part_full() -> None:
    fabric = HostFabric()
    for seed in range(5):
        taken: set[int] = set()
        for copy in itertools.chain(*(job.copies for job in drawn(seed))):
            taken |= set(copy)
            tors = dict.fromkeys(fabric.tor_of(host) for host in copy)
            for tor in list(tors)[:-1]:
                assert {tor * 32 + place for place in range(32)} <= taken


def test_arrivals_begin_at_0_and_the_seed_says_all() -> None:
    jobs = drawn(7, arrivals_within_s=5.0)
    arrivals = [job.arrival_s for job in jobs]
    assert min(arrivals) == 0
    assert 0 < max(arrivals) < 5
    assert jobs == drawn(7, arrivals_within_s=5.0)
    assert jobs != drawn(8, arrivals_within_s=5.0)


def test_jobs_that_cannot_be_placed_are_refused() -> None:
    models = [MODELS["llama2-70b"]] * 3
    with refused(ValueError, "jobs", 3072, 2048):
        draw_jobs(HostFabric(), models, 8, SECONDS)
    with refused(ValueError, "copies", 1, 2):
        draw_jobs(HostFabric(), models, 1, SECONDS)
    with refused(ValueError, "placed_by", "lot"):
        drawn(0, placed_by="lot")


def test_a_fabric_names_what_is_wrong() -> None:
    with refused(ValueError, "spines", 0, 1):
        HostFabric(spines=0)
    with refused(ValueError, "link_gbps", 0):
        HostFabric(link_gbps=0)
    with refused(ValueError, "spine", 32):
        HostFabric().without([32])
    with refused(ValueError, "spine", 2):
        HostFabric(2, 2).without([0, 1])


def test_a_path_leaves_by_its_hosts_links() -> None:
    fabric = HostFabric(2, 3, 4)
    first = len(fabric.whole.links)
    assert len(fabric.capacity) == first + 2 * fabric.hosts
    assert fabric.path(1, 3, ()) == [first + 1, first + 8 + 3]
    up, down = (fabric.whole.link_numbers[link] for link in ((0, 4), (4, 1)))
    assert fabric.path(0, 7, (0, 4, 1)) == [first, up, down, first + 8 + 7]
    assert fabric.without([]) is fabric.whole
    assert fabric.without([1]).common_spines == 2
