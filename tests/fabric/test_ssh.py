"""Names of hosts become parts of commands only if no program takes them for anything else."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.fabric.ssh import check_host, reach_command, ssh_command

NAMES = ["box7.lab", "h_0", "10.0.0.1", "fd00::1", "::1", "fe80::1%eth0", "_gateway"]
NO_NAMES = [
    "",
    "-oProxyCommand=touch hacked",
    "-h0",
    ".h0",
    "%h0",
    "h0 h1",
    "h0;true",
    "$(true)",
    "`true`",
    "h0\n",
    "h'0",
    "h\u00f60",
    "h" * 256,
]


@pytest.mark.parametrize("name", NAMES)
def test_names_and_addresses_follow_two_dashes(name: str) -> None:
    assert check_host(name) == name
    for host in (name, f"root@{name}"):
        assert ssh_command(("ssh", "-T"), host, "true") == ["ssh", "-T", "--", host, "true"]
    words = reach_command(("ssh", "--", "{management}"), server="h0", management=name)
    assert words == ["ssh", "--", name]


@pytest.mark.parametrize("name", NO_NAMES)
def test_any_other_name_is_refused(name: str) -> None:
    for host in (name, f"root@{name}", f"{name}@h0" if name else "-l@h0"):
        with refused(ValueError, "is not"):
            ssh_command(("ssh",), host, "true")
    with refused(ValueError, "name", "address"):
        reach_command(("ssh", "{management}"), server="h0", management=name)
    with refused(ValueError, "name", "address"):
        reach_command(("ssh", "{server}"), server=name, management="10.0.0.1")
