"""Cluster files: what is read, what is written, and every error with the path of its field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from support.refusals import refused

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry
from torch_topoopt.fabric.cluster_file.exo_state import addresses_of_exo
from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from pathlib import Path

RING = """\
version: 1
name: lab
servers:
  - name: h0
    management: 10.200.0.1
    accelerators: 2
    inside: 3600Gbps
    ports:
      - {name: p0, address: 10.201.0.1/30, bandwidth: 25Mbps}
      - {name: p1, address: 10.201.0.6/30, bandwidth: 1.5Gbps, interface: enp3s0, mtu: 9000}
  - name: h1
    management: box7.lab
    host: box7
    ports:
      - {name: p0, address: 10.201.0.2/30, mac: 12:34:56:12:34:56}
      - {name: p1, address: 10.201.1.1/16, switch: "ocs0:3"}
  - name: h2
    management: box7.lab
    host: box7
    ports:
      - {name: p0, address: 10.201.0.5/30}
cables:
  - [h0:p0, h1:p0]
  - [h2:p0, h0:p1]
switches:
  - {name: ocs0, kind: sonic-ocs, address: "https://10.0.0.5", user: admin,
     password: {env: OCS0_PASSWORD}, sockets: ["1", "2", "3"],
     options: {verify: false, poll_s: 0.5}}
"""


def test_a_cluster_file_says_what_it_says() -> None:
    cluster = ClusterFile.from_yaml(RING)
    assert [server.name for server in cluster.servers] == ["h0", "h1", "h2"]
    assert cluster.servers[0].accelerators == 2
    assert cluster.servers[1].accelerators == 1
    assert [server.inside_gbps for server in cluster.servers] == [3600, None, None]
    assert cluster.servers[0].ports[1] == PortEntry(
        "p1", "10.201.0.6/30", 1.5, interface="enp3s0", mtu=9000
    )
    assert cluster.servers[0].ports[0].gbps == 0.025
    # In YAML 1.1 this one would be a number in base 60.
    assert cluster.servers[1].ports[0].mac == "12:34:56:12:34:56"
    assert cluster.cables == (("h0:p0", "h1:p0"), ("h2:p0", "h0:p1"))
    assert cluster.ports["h2:p0"] == (2, PortEntry("p0", "10.201.0.5/30"))
    switch = cluster.switches[0]
    assert switch.password == PasswordSource(env="OCS0_PASSWORD")
    assert switch.options == {"verify": False, "poll_s": 0.5}
    assert switch.sockets == ("1", "2", "3")


def test_what_is_written_reads_as_the_same_here_and_elsewhere() -> None:
    cluster = ClusterFile.from_yaml(RING)
    text = cluster.to_yaml()
    assert ClusterFile.from_yaml(text) == cluster
    plain = yaml.safe_load(text)
    assert plain["cables"] == [["h0:p0", "h1:p0"], ["h2:p0", "h0:p1"]]
    assert plain["servers"][1]["ports"][0]["mac"] == "12:34:56:12:34:56"
    assert plain["servers"][0]["ports"][0]["bandwidth"] == "25Mbps"
    assert plain["servers"][0]["inside"] == "3600Gbps"


def test_servers_are_numbered_anew_with_the_cables_between_them() -> None:
    cluster = ClusterFile.from_yaml(RING)
    turned = cluster.of_servers(["h2", "h0"])
    assert [server.name for server in turned.servers] == ["h2", "h0"]
    assert turned.cables == (("h2:p0", "h0:p1"),)
    assert turned.ports["h2:p0"][0] == 0
    assert cluster.without({"h1"}) == cluster.of_servers(["h0", "h2"])


def test_words_that_yaml_takes_for_something_else_stay_text() -> None:
    text = """\
version: 1
name: "on"
servers:
  - {name: no, management: 10.0.0.1, ports: [{name: "1", address: 10.1.0.1/24}]}
  - {name: "2", management: 10.0.0.2, ports: [{name: "30", address: 10.1.0.2/24}]}
cables:
  - ["no:1", 2:30]
"""
    cluster = ClusterFile.from_yaml(text)
    assert [server.name for server in cluster.servers] == ["no", "2"]
    assert cluster.cables == (("no:1", "2:30"),)
    written = yaml.safe_load(cluster.to_yaml())
    assert [server["name"] for server in written["servers"]] == ["no", "2"]
    assert written["name"] == "on"
    assert written["cables"] == [["no:1", "2:30"]]
    assert ClusterFile.from_yaml(cluster.to_yaml()) == cluster


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    cluster = ClusterFile.from_yaml(RING)
    cluster.save(tmp_path / "cluster.yaml")
    assert load_cluster(tmp_path / "cluster.yaml") == cluster


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1\n", "", "version: missing field"),
        ("version: 1\n", "version: 2\n", "version: 2 is not 1"),
        ("version: 1\n", "version: one\n", "version: expected a whole number, got 'one'"),
        ("name: lab", "name: 7", "name: expected text, got 7; put it in quotes"),
        ("name: lab\n", "name: lab\nname: lib\n", "name: given twice in one object (line 3)"),
        ("name: lab\n", "nam: lab\n", "nam: unknown field (known: version, name, servers"),
        ("    management: 10.200.0.1\n", "", "servers[0].management: missing field"),
        (
            "management: 10.200.0.1",
            'management: "-oProxyCommand=touch hacked"',
            "servers[0].management: '-oProxyCommand=touch hacked' is not the name or address of a",
        ),
        ("interface: enp3s0", "interface: -n", "servers[0].ports[1].interface: '-n' is not the"),
        ("interface: enp3s0", "interface: a/b", "servers[0].ports[1].interface: 'a/b' is not"),
        ("accelerators: 2", "accelerators: 0", "servers[0].accelerators: 0 is not at least 1"),
        ("accelerators: 2", "accelerators: true", "servers[0].accelerators: expected a whole num"),
        ("10.201.0.6/30", "10.201.0.6", "servers[0].ports[1].address: '10.201.0.6' is not an add"),
        ("10.201.0.6/30", "10.201.0.7/30", "servers[0].ports[1].address: 10.201.0.7/30 is the net"),
        (
            "10.201.0.6/30",
            "2001:db8::1%p1/64",
            "servers[0].ports[1].address: '2001:db8::1%p1/64' is not an address with its prefix",
        ),
        ("10.201.0.5/30", "10.201.0.1/30", "servers[2].ports[0].address: '10.201.0.1' is already"),
        ("25Mbps", "25", "servers[0].ports[0].bandwidth: expected text, got 25"),
        ("25Mbps", "25MBps", "servers[0].ports[0].bandwidth: 'MBps' is not a unit"),
        ("mtu: 9000", "mtu: 9000000", "servers[0].ports[1].mtu: 9000000 is not in 68..65535"),
        ("mtu: 9000", "mut: 9000", "servers[0].ports[1].mut: unknown field (known: name, address"),
        ("12:34:56:12:34:56", "12:34", "servers[1].ports[0].mac: '12:34' is not an address"),
        ("name: h1", "name: h0", "servers[1].name: 'h0' is already servers[0].name"),
        ("name: h1", "name: h:1", "servers[1].name: 'h:1' is not a name"),
        (
            "name: p1, address: 10.201.0.6",
            "name: p0, address: 10.201.0.6",
            "servers[0].ports[1].na",
        ),
        (
            "    host: box7\n    ports:\n      - {name: p0, address: 10.201.0.5",
            "    ports:\n      - {name: p0, address: 10.201.0.5",
            "servers[2].management: 'box7.lab' is already servers[1",
        ),
        (
            "[h0:p0, h1:p0]",
            "[h0:p0, h1:p7]",
            "cables[0][1]: 'h1:p7': h1 has no such port (it has: ",
        ),
        ("[h0:p0, h1:p0]", "[h0:p0, h7:p0]", "cables[0][1]: 'h7:p0': there is no server 'h7'"),
        ("[h0:p0, h1:p0]", "[h0:p0, h1]", "cables[0][1]: 'h1' is not a port; write server:port"),
        ("[h0:p0, h1:p0]", "[h0:p0]", "cables[0]: a cable has two ends"),
        ("[h0:p0, h1:p0]", "h0:p0", "cables[0]: expected a list, got 'h0:p0'"),
        ("[h2:p0, h0:p1]", "[h2:p0, h0:p0]", "cables[1][1]: 'h0:p0' is already cables[0][0]"),
        ("[h2:p0, h0:p1]", "[h0:p1, h0:p1]", "cables[1][1]: 'h0:p1' is already cables[1][0]"),
        ("[h0:p0, h1:p0]", "[h1:p0, h1:p1]", "cables[0]: both ends are ports of h1"),
        (
            "10.201.0.5/30",
            "10.201.9.5/30",
            "cables[1]: h2:p0 (10.201.9.5/30) and h0:p1 (10.201.0.6",
        ),
        (
            "ocs0:3",
            "ocs0:4",
            "servers[1].ports[1].switch: 'ocs0:4': '4' is not in the sockets of o",
        ),
        ("ocs0:3", "ocs1:3", "servers[1].ports[1].switch: 'ocs1:3': there is no switch 'ocs1'"),
        (
            "address: 10.201.0.5/30",
            "address: 10.201.0.5/30, switch: ocs0:3",
            "servers[2].ports[0].s",
        ),
        (
            "address: 10.201.0.5/30",
            "address: 10.201.0.5/30, switch: ocs0:2",
            "servers[2].ports[0].switch: 'ocs0:2', but the port is already cables[1][0]",
        ),
        ('"1", "2"', '1, "2"', "switches[0].sockets[0]: expected text, got 1; put it in quotes"),
        ('"1", "2"', '"2", "2"', "switches[0].sockets[1]: '2' is already switches[0].sockets[0]"),
        ("{env: OCS0_PASSWORD}", "{}", "switches[0].password: needs one of env and file"),
        (
            "{verify: false, poll_s: 0.5}",
            "[]",
            "switches[0].options: expected an object, got a list",
        ),
        ("cables:", "cables: [", "not valid YAML: "),
        (
            "cables:",
            "cables: !!python/object:os.system",
            "not valid YAML: could not determine a co",
        ),
    ],
)
def test_an_error_names_its_field(old: str, new: str, message: str) -> None:
    assert old in RING
    with pytest.raises(DocumentError) as error:
        ClusterFile.from_yaml(RING.replace(old, new, 1))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("10.201.0.1/30", "9" * 5000),
        ("name: h0", f"name: {'h' * 5000}"),
        ("[h0:p0, h1:p0]", f"[h0:{'p' * 5000}, h1:p0]"),
        ('"2", "3"]', f"{', '.join(f's{i}' for i in range(5000))}]"),
    ],
)
def test_an_error_stays_short_whatever_is_in_the_file(old: str, new: str) -> None:
    text = RING.replace(old, new)
    assert text != RING
    with pytest.raises(DocumentError) as error:
        ClusterFile.from_yaml(text)
    assert len(str(error.value)) < 600


def test_a_password_in_the_file_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(DocumentError) as error:
        ClusterFile.from_yaml(RING.replace("{env: OCS0_PASSWORD}", "hunter2"))
    assert "switches[0].password: a password is not written into" in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "7", "version: 1", "a: &a [*a]"])
def test_anything_else_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with refused(DocumentError, "cluster.yaml"):
        load_cluster(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with refused(DocumentError, "none.yaml", "No such file"):
        load_cluster(tmp_path / "none.yaml")
    (tmp_path / "image.yaml").write_bytes(b"\xff\xd8\xff")
    with refused(DocumentError, "image.yaml", "text file"):
        load_cluster(tmp_path / "image.yaml")


def hostfile(folder: Path, hosts: object) -> Path:
    path = folder / "hosts.json"
    path.write_text(json.dumps(hosts))
    return path


def test_an_mlx_hostfile_of_two_hosts_pairs_their_addresses(tmp_path: Path) -> None:
    hosts = [
        {"ssh": "ann@m1", "ips": ["192.168.0.1", "192.168.1.1"]},
        {"ssh": "m2.local", "ips": ["192.168.0.2", "192.168.1.2"]},
    ]
    cluster = load_cluster(hostfile(tmp_path, hosts))
    assert [(s.name, s.management) for s in cluster.servers] == [
        ("m1", "m1"),
        ("m2.local", "m2.local"),
    ]
    assert cluster.cables == (("m1:p0", "m2.local:p0"), ("m1:p1", "m2.local:p1"))
    assert cluster.servers[1].ports[1] == PortEntry("p1", "192.168.1.2/30")


def test_an_mlx_ring_has_the_other_end_of_each_cable_at_the_host_before(tmp_path: Path) -> None:
    hosts = [
        {"ssh": "m0", "ips": ["192.168.0.9"], "rdma": []},
        {"ssh": "m1", "ips": ["192.168.0.2"]},
        {"ssh": "m2", "ips": ["192.168.0.6"]},
    ]
    for value in (hosts, {"backend": "ring", "envs": ["A=1"], "hosts": hosts}):
        cluster = load_cluster(hostfile(tmp_path, value))
        ends = {
            frozenset(
                (cluster.servers[cluster.ports[end][0]].name, cluster.ports[end][1].ip)
                for end in cable
            )
            for cable in cluster.cables
        }
        assert ends == {
            frozenset({("m2", "192.168.0.10"), ("m0", "192.168.0.9")}),
            frozenset({("m0", "192.168.0.1"), ("m1", "192.168.0.2")}),
            frozenset({("m1", "192.168.0.5"), ("m2", "192.168.0.6")}),
        }


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ([{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ["10.0.0.3"]}], "[1].ips[0]: 1"),
        (
            [{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ["10.0.0.5"]}],
            "ips: subnet 10.0.",
        ),
        ([{"ssh": "a", "ips": []}, {"ssh": "b", "ips": ["10.0.0.1"]}], "[0].ips: a has no address"),
        ([{"ssh": "a", "ips": ["x"]}, {"ssh": "b"}], "[0].ips[0]: 'x' is not an IPv4 address"),
        ([{"ips": ["10.0.0.1"]}], "[0].ssh: missing field"),
        (
            {"hosts": [{"ssh": "a", "ip": "10.0.0.1"}]},
            "hosts[0].ip: unknown field (known: ssh, ips",
        ),
        ([{"ssh": n, "ips": [f"10.0.0.{i + 1}"]} for i, n in enumerate("abcd")], "[2].ips[0]: 1"),
    ],
)
def test_a_hostfile_that_leaves_cables_open_is_refused(
    hosts: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DocumentError) as error:
        load_cluster(hostfile(tmp_path, hosts))
    assert message in str(error.value)


def jaccl(*rows: list[object]) -> list[dict[str, object]]:
    return [
        {"ssh": f"ann@m{i}", "ips": [f"10.0.0.{i + 1}"], "rdma": row} for i, row in enumerate(rows)
    ]


TRIANGLE = jaccl(
    [None, "rdma_en5", "rdma_en4"], ["rdma_en5", None, "rdma_en3"], ["rdma_en4", "rdma_en3", None]
)


def test_a_jaccl_hostfile_has_a_cable_for_each_device(tmp_path: Path) -> None:
    for value in (TRIANGLE, {"backend": "jaccl", "envs": [], "hosts": TRIANGLE}):
        cluster = load_cluster(hostfile(tmp_path, value))
        assert cluster.cables == (("m0:en5", "m1:en5"), ("m0:en4", "m2:en4"), ("m1:en3", "m2:en3"))
        assert [server.management for server in cluster.servers] == ["m0", "m1", "m2"]
        assert cluster.servers[1].ports == (
            PortEntry("en5", "10.201.0.2/30", interface="en5"),
            PortEntry("en3", "10.201.0.9/30", interface="en3"),
        )


def test_a_jaccl_ring_may_have_several_cables_and_hosts_without_one(tmp_path: Path) -> None:
    both = ["mlx5_0", "mlx5_1"]
    rows = ([None, both, None], [both, None, "x"], [None, "y", None])
    cluster = load_cluster(hostfile(tmp_path, jaccl(*rows)))
    assert cluster.cables == (
        ("m0:mlx5_0", "m1:mlx5_0"), ("m0:mlx5_1", "m1:mlx5_1"), ("m1:x", "m2:y")
    )  # fmt: skip
    assert cluster.servers[0].ports[0].interface is None


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [
        (([None, "a"], [None, None]), ("[1].rdma[0]", "m1", "m0")),
        (([None, "a"], ["b"]), ("[1].rdma", "m1", 1)),
        (([None, "a", "a"], ["b", None, "c"], ["b", "c", None]), ("rdma", "a of m0", "switch")),
        (([None, 5], ["b", None]), ("[0].rdma[1]",)),
    ],
)
def test_devices_that_are_no_ends_of_cables_are_refused(
    rows: tuple[list[object], ...], tokens: tuple[object, ...], tmp_path: Path
) -> None:
    with refused(DocumentError, "hosts.json", *tokens):
        load_cluster(hostfile(tmp_path, jaccl(*rows)))


def exo_state(*, rdma: bool = True) -> dict[str, object]:
    """Two Macs on one cable and one Ethernet network."""

    def toward(other: int) -> list[object]:
        socket = {"sinkMultiaddr": {"address": f"/ip4/10.0.0.{other + 1}/tcp/1"}}
        device = {"sourceRdmaIface": f"rdma_en{3 - other}", "sinkRdmaIface": f"rdma_en{2 + other}"}
        return [socket, device] if rdma else [socket]

    interfaces = [
        [
            {"name": "lo0", "ipAddress": "127.0.0.1", "interfaceType": "unknown"},
            {"name": "en2", "ipAddress": f"192.168.0.{i + 1}", "interfaceType": "thunderbolt"},
            {"name": "en0", "ipAddress": f"10.0.0.{i + 1}", "interfaceType": "ethernet"},
            {"name": "en0", "ipAddress": "fe80::1", "interfaceType": "ethernet"},
        ]
        for i in range(2)
    ]
    return {
        "topology": {
            "nodes": ["n0", "n1"],
            "connections": {"n0": {"n1": toward(1)}, "n1": {"n0": toward(0)}},
        },
        "nodeNetwork": {f"n{i}": {"interfaces": own} for i, own in enumerate(interfaces)},
        "nodeIdentities": {"n0": {"friendlyName": "Ann's Mac"}},
    }


def test_a_state_of_exo_has_its_connections_over_rdma(tmp_path: Path) -> None:
    cluster = load_cluster(hostfile(tmp_path, exo_state()))
    assert [(s.name, s.management) for s in cluster.servers] == [
        ("Ann-s-Mac", "10.0.0.1"),
        ("n1", "10.0.0.2"),
    ]
    assert cluster.cables == (("Ann-s-Mac:en2", "n1:en3"),)


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        (exo_state(rdma=False), ("RDMA", "discover --hostfile")),
        (exo_state() | {"nodeNetwork": {}}, ("exo", "n0")),
        ({"peers": {"a": {"address": "10.0.0.1", "port": 1}}}, ("peers", "discover --hostfile")),
    ],
)
def test_lists_of_exo_without_cables_are_refused(
    value: object, tokens: tuple[object, ...], tmp_path: Path
) -> None:
    with refused(DocumentError, "hosts.json", *tokens):
        load_cluster(hostfile(tmp_path, value))


def test_hosts_of_exo_are_found_by_their_addresses() -> None:
    assert addresses_of_exo(exo_state()) == ["10.0.0.1", "10.0.0.2"]
    peers = {f"n{i}": {"address": f"10.0.1.{i}", "port": 5678} for i in range(2)}
    assert addresses_of_exo({"peers": peers}) == ["10.0.1.0", "10.0.1.1"]
