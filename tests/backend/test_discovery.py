"""Jobs without a plan: on one machine, and on machines that only reach their neighbours."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
import torch.distributed as dist
from support.backend.network_namespaces import HostsFactory
from support.backend.ranks import run_bare_ranks, values
from support.launcher import wait_for
from support.plain_namespaces import ip, skip_without_ipv6

from torch_topoopt.runtime import backend


@pytest.fixture
def hosts():
    with HostsFactory("tc") as factory:
        yield factory


@pytest.fixture
def cache(tmp_path):
    """What one test measures decides nothing in another."""
    return tmp_path / "torch_topoopt"


def use_and_describe(rank: int, world: int) -> dict:
    """Uses the group, and describes the discovered network."""
    dist.init_process_group("topoopt")
    total = torch.full((50_021,), float(rank + 1))
    dist.all_reduce(total)
    assert torch.equal(total, torch.full((50_021,), world * (world + 1) / 2))
    received = torch.empty(world)
    dist.all_to_all_single(received, torch.arange(world) + 100.0 * rank)
    assert torch.equal(received, torch.arange(world) * 100.0 + rank)
    job = backend.jobs[-1]
    network = job.plan.network
    description = {
        "server_of": list(job.layout.server_of),
        "links": sorted((link.source, link.target) for link in network.links),
        "rings": [ring.servers for ring in network.groups[0].rings],
        "interfaces": sorted({port.interface for port in job.wiring.ports}),
        "gbps": job.plan.cluster.link_gbps,
        # Local links have no port.
        "counters": sum(link["source_port"] >= 0 for link in backend.stats()["links"]),
    }
    dist.barrier()
    dist.destroy_process_group()
    return description


def duplex(*cables: tuple[int, int]) -> list[tuple[int, int]]:
    return sorted([*cables, *((b, a) for a, b in cables)])


def test_ranks_of_one_machine_are_one_server():
    for found in values(run_bare_ranks(3, use_and_describe)):
        assert found["server_of"] == [0, 0, 0]
        assert found["links"] == []


def test_without_shared_memory_ranks_of_one_machine_are_fully_connected_by_tcp():
    outcomes = run_bare_ranks(4, use_and_describe, TOPOOPT_SHARED_MEMORY="0")
    for found in values(outcomes):
        assert found["server_of"] == [0, 1, 2, 3]
        assert found["links"] == [(a, b) for a in range(4) for b in range(4) if a != b]
        assert found["interfaces"] == ["lo"]
        assert found["counters"] == 3


def start_twice(rank: int, world: int) -> tuple[int, int]:
    """The sum, and how many lines said what was chosen."""
    output = io.StringIO()
    with contextlib.redirect_stderr(output):
        for _ in range(2):
            dist.init_process_group("topoopt")
            ones = torch.ones(5)
            dist.all_reduce(ones)
            dist.destroy_process_group()
    return int(ones[0]), sum(line.startswith("topoopt:") for line in output.getvalue().splitlines())


def test_the_network_is_discovered_again_for_a_group_that_is_created_again():
    # a process prints the choice once, however often it starts
    assert values(run_bare_ranks(2, start_twice)) == [(2, 1), (2, 0)]


def just_start(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TOPOOPT_SHARED_MEMORY", "no", "TOPOOPT_SHARED_MEMORY: 'no' is neither 0 (off) nor 1"),
        ("TOPOOPT_INTERFACES", "nic7", "TOPOOPT_INTERFACES: 'nic7' leaves no interface of host"),
        ("TOPOOPT_INTERFACES", "lo,nic7", "no host has an interface 'nic7'"),
        ("TOPOOPT_INTERFACES", "lo,^eth0", "TOPOOPT_INTERFACES: 'lo,^eth0' is not a list like"),
        ("TOPOOPT_LOG", "loud", "TOPOOPT_LOG: 'loud' is not one of debug, info"),
    ],
)
def test_a_bad_environment_is_one_clear_error_on_all_ranks(variable, value, message):
    for outcome in run_bare_ranks(2, just_start, **{variable: value}):
        assert message in outcome.error


def described(ring) -> list[dict]:
    """What a rank on each host of `ring` says of the network that it has found on the cables."""
    outcomes = run_bare_ranks(
        len(ring.names),
        use_and_describe,
        namespaces=ring.names,
        store_address=ring.store_address,
        TOPOOPT_INTERFACES="cable",
    )
    return values(outcomes)


def test_a_ring_of_four_hosts_uses_its_cables_and_relays_between_opposite_hosts(hosts):
    cables = [(0, 1), (1, 2), (2, 3), (0, 3)]
    ring = hosts.make(4, cables)
    for found in described(ring):
        assert found["server_of"] == [0, 1, 2, 3]
        assert found["links"] == duplex(*cables)
        assert found["rings"] == [(0, 1, 2, 3), (0, 3, 2, 1)]
        assert found["interfaces"] == ["cable0", "cable1", "cable2", "cable3"]
        assert found["counters"] == 2


def test_cables_whose_addresses_are_all_in_one_subnet_keep_their_traffic(hosts):
    """Self-assigned addresses: the routes of a host lead to its first cable only."""
    cables = [(0, 1), (1, 2), (0, 2)]
    ring = hosts.make(3, cables)
    for number, ends in enumerate(cables):
        for host in ends:
            ip(f"-n {ring.names[host]} -4 addr flush dev cable{number}")
            ip(f"-n {ring.names[host]} addr add 169.254.{number}.{host + 1}/16 dev cable{number}")
    for found in described(ring):
        assert found["links"] == duplex(*cables)
        assert found["interfaces"] == ["cable0", "cable1", "cable2"]


def test_cables_without_addresses_are_used_by_their_link_local_ones(hosts):
    skip_without_ipv6()
    cables = [(0, 1), (1, 2), (2, 3), (0, 3)]
    ring = hosts.make(4, cables)
    for number, ends in enumerate(cables):
        for host in ends:
            ip(f"-n {ring.names[host]} -4 addr flush dev cable{number}")
            shown = f"-n {ring.names[host]} -6 addr show dev cable{number} scope link -tentative"
            wait_for(lambda shown=shown: "inet6" in ip(shown), f"an address of cable{number}")
    outcomes = run_bare_ranks(
        4,
        use_and_describe,
        namespaces=ring.names,
        store_address=ring.store_address,
        TOPOOPT_INTERFACES="cable",
    )
    for rank, found in enumerate(values(outcomes)):
        assert found["server_of"] == [0, 1, 2, 3], rank
        assert found["links"] == duplex(*cables)


def test_a_line_of_three_hosts_with_two_ranks_each_goes_through_the_middle(hosts):
    line = hosts.make(3, [(0, 2), (1, 2)])
    outcomes = run_bare_ranks(
        6,
        use_and_describe,
        namespaces=[line.names[rank // 2] for rank in range(6)],
        store_address=line.store_address,
        TOPOOPT_INTERFACES="^manage",
    )
    for rank, found in enumerate(values(outcomes)):
        assert found["server_of"] == [0, 0, 1, 1, 2, 2]
        assert found["links"] == duplex((0, 2), (1, 2))
        assert found["counters"] == (1, 0, 1, 0, 2, 0)[rank]


def chosen(namespaces, cache, **environment) -> dict:
    """What rank 0 says of the network that was chosen among all interfaces."""
    outcomes = run_bare_ranks(
        len(namespaces.names),
        use_and_describe,
        namespaces=namespaces.names,
        store_address=namespaces.store_address,
        XDG_CACHE_HOME=str(cache.parent),
        **environment,
    )
    found = values(outcomes)
    for of_rank in found[1:]:
        assert of_rank["links"] == found[0]["links"]
    return found[0]


def test_hosts_on_one_switch_are_connected_pairwise_beside_their_cable(hosts, cache):
    switched = hosts.make(3, [(0, 1)])
    hosts.limit({"cable": 50, "manage": 50})
    found = chosen(switched, cache)
    assert found["links"] == duplex((0, 1), (0, 2), (1, 2))
    assert found["interfaces"] == ["cable0", "manage"]


def test_a_slow_management_network_is_measured_and_carries_no_data(hosts, cache):
    """Both kinds of interfaces say 10 Gb/s."""
    cables = [(0, 1), (1, 2), (2, 3)]
    line = hosts.make(4, cables)
    hosts.limit({"cable": 100, "manage": 10})
    found = chosen(line, cache)
    assert found["links"] == duplex(*cables)
    assert 0.05 < found["gbps"] < 0.11
    (kept,) = cache.glob("rates-*.json")
    written = kept.stat().st_mtime_ns
    assert chosen(line, cache)["gbps"] == found["gbps"], "what the first job has measured"
    assert kept.stat().st_mtime_ns == written
    by_hand = chosen(line, cache, TOPOOPT_INTERFACES="cable,manage")
    assert "manage" in by_hand["interfaces"], "interfaces that are named are used"
    assert by_hand["gbps"] == 10.0


def test_a_management_network_that_is_faster_than_cables_carries_the_data(hosts, cache):
    line = hosts.make(4, [(0, 1), (1, 2), (2, 3)])
    hosts.limit({"cable": 5, "manage": 50})
    assert chosen(line, cache)["interfaces"] == ["manage"]


def test_a_host_that_no_other_reaches_is_named_on_all_ranks(hosts):
    broken = hosts.make(3, [(0, 1)])
    outcomes = run_bare_ranks(
        3,
        just_start,
        namespaces=broken.names,
        store_address=broken.store_address,
        TOPOOPT_INTERFACES="cable,lo",
    )
    for outcome in outcomes:
        assert "(rank 2; no address): reached by no other host" in outcome.error
