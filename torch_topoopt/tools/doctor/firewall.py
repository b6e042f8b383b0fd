"""The base chains of the firewall that drop packets by default, as nft and iptables show them.

Both are read: Docker uses iptables, and nft shows only the rules of iptables-nft. This needs root.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from torch_topoopt.tools.doctor.facts import ChainFacts, FirewallFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOOKS = ("forward", "input")
_LIMIT_S = 20.0


def read_firewall() -> FirewallFacts:
    """Runs the installed programs; `read` lists those that worked."""
    read, drops = [], []
    docker = False
    rules = _output("iptables", "-S")
    if rules is not None:
        read.append("iptables")
        drops += list(iptables_chains(rules))
        docker = "-N DOCKER-USER" in rules.splitlines()
    ruleset = _output("nft", "-j", "list", "ruleset")
    if ruleset is not None:
        read.append("nft")
        known = {chain.hook for chain in drops}
        # chains of iptables-nft are in nft, too: repair them with iptables
        drops += [c for c in nft_chains(ruleset) if not (_of_iptables(c) and c.hook in known)]
    return FirewallFacts(tuple(read), docker, tuple(drops))


def iptables_chains(rules: str) -> Iterator[ChainFacts]:
    """Chains of `iptables -S` that drop by default."""
    lines = [line.split() for line in rules.splitlines()]
    for hook in _HOOKS:
        chain = hook.upper()
        if ["-P", chain, "DROP"] not in lines:
            continue
        user = hook == "forward" and ["-N", "DOCKER-USER"] in lines
        chains = {chain, "DOCKER-USER"} if user else {chain}
        yield ChainFacts(
            hook,
            f"iptables chain {chain}",
            tuple(sorted({name for line in lines for name in _accepted(line, chains)})),
            f"iptables -I {'DOCKER-USER' if user else chain} {{}}",
        )


def _accepted(line: list[str], chains: set[str]) -> Iterator[str]:
    """Interfaces from which a rule of one of `chains` accepts everything ("*": from all)."""
    if line[:1] != ["-A"] or line[1] not in chains or line[-2:] != ["-j", "ACCEPT"]:
        return
    match = line[2:-2]
    if not match:
        yield "*"
    elif match[0] == "-i" and (len(match) == 2 or match[2] == "-o") and len(match) in (2, 4):
        yield match[1]


def nft_chains(ruleset: str) -> Iterator[ChainFacts]:
    """Chains of `nft -j list ruleset` that drop by default."""
    entries: list[dict[str, Any]] = json.loads(ruleset)["nftables"]
    rules = [entry["rule"] for entry in entries if "rule" in entry]
    for entry in entries:
        chain = entry.get("chain", {})
        if chain.get("policy") != "drop" or chain.get("hook") not in _HOOKS:
            continue
        if chain["family"] not in ("ip", "inet"):
            continue
        name = f"{chain['family']} {chain['table']} {chain['name']}"
        own = [
            rule
            for rule in rules
            if (rule["family"], rule["table"], rule["chain"])
            == (chain["family"], chain["table"], chain["name"])
        ]
        yield ChainFacts(
            chain["hook"],
            f"nft chain {name}",
            tuple(sorted({name for rule in own for name in _accepted_by_nft(rule["expr"])})),
            f"nft insert rule {name} {{}}",
        )


def _accepted_by_nft(expressions: list[dict[str, Any]]) -> Iterator[str]:
    if not expressions or "accept" not in expressions[-1]:
        return
    matches = [e["match"] for e in expressions if "match" in e]
    others = [e for e in expressions[:-1] if "match" not in e and "counter" not in e]
    keys = [match["left"].get("meta", {}).get("key") for match in matches]
    if others or any(key not in ("iifname", "oifname") for key in keys):
        return
    if not matches:
        yield "*"
    for key, match in zip(keys, matches, strict=True):
        if key == "iifname" and match["op"] == "==":
            right = match["right"]
            names = right["set"] if isinstance(right, dict) and "set" in right else [right]
            yield from (name for name in names if isinstance(name, str))


def accept_rule(chain: ChainFacts, interface: str) -> str:
    """The shell command that lets through what comes in at `interface`."""
    if chain.where.startswith("nft"):
        return chain.insert.format(f'iifname "{interface}" accept').replace('"', '\\"')
    return chain.insert.format(f"-i {interface} -j ACCEPT")


def _of_iptables(chain: ChainFacts) -> bool:
    return chain.where in ("nft chain ip filter FORWARD", "nft chain ip filter INPUT")


def _output(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
