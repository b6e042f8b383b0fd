"""FILE.py:NAME: policies, topology algorithms and architectures of the user's, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torch_topoopt.architectures import architecture
from torch_topoopt.launcher.main import main
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.user_functions import UserFunction, UserFunctionError

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = Cluster(4, 2, 10.0)
DEMAND = Demand((GroupDemand((0, 1, 2, 3), 1000),), ())

MINE = """
from dataclasses import replace
from torch_topoopt.architectures import ideal_switch
from torch_topoopt.plan import Cluster, Route
from torch_topoopt.topology.finder.single_ring import single_ring

def backwards(cluster, demand, network):
    return [Route((a, (a - 1) % 4, (a - 2) % 4), 1.0) for a in range(4)]

def find(cluster, demand, *, seed):
    return single_ring(cluster, demand)

def build(cluster, demand=None, *, seed=0):
    return ideal_switch.build(cluster)

def nothing(*arguments, **keywords):
    return None

def fails(*arguments, **keywords):
    raise KeyError("no such server")

def words(cluster, demand, network):
    return ["0-1-2"]

def off_the_links(cluster, demand, network):
    return [Route((0, 2), 1.0)]

def half(cluster, demand, network):
    return [replace(route, weight=0.5) for route in backwards(cluster, demand, network)]

def fractions(cluster, demand, network):
    return [Route((0.0, 1.0, 2.0), 1.0)]

def without_rings(cluster, demand, *, seed):
    return replace(single_ring(cluster, demand), groups=())

def too_small(cluster, demand=None, *, seed=0):
    return ideal_switch.build(Cluster(2, 1, 10.0))

def no_rings(cluster, demand=None, *, seed=0):
    return replace(ideal_switch.build(cluster), rings=())

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


def test_a_policy_replaces_the_routes_of_any_mode(mine: str) -> None:
    policy = UserFunction.load("routing", f"{mine}:backwards")
    for mode in ("paper", UserFunction.load("mode", f"{mine}:find")):
        network = find_network(CLUSTER, DEMAND, mode=mode, routing=policy)  # type: ignore[arg-type]
        table = network.routes_by_pair()
        assert all(table[a, (a + 2) % 4][0].servers[1] == (a - 1) % 4 for a in range(4))


def test_an_architecture_is_built(mine: str) -> None:
    topology = architecture(f"{mine}:build")(CLUSTER)
    assert topology == architecture("ideal-switch")(CLUSTER)


def test_the_plan_records_names(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["--servers", "4", "--evaluations", "3", "--rounds", "1", "--output", "plan.json"]
    functions = ["--mode", "mine.py:find", "--routing", f"{mine}:backwards"]
    assert main(["plan", "dlrm:tiny", *asked, *functions]) == 0
    plan = Plan.load("plan.json")
    assert (plan.mode, plan.routing) == ("mine.py:find", "mine.py:backwards")
    assert main(["simulate", "plan.json", "--architecture", "mine.py:build"]) == 0
    assert "iteration: " in capsys.readouterr().out


def _use(field: str, spec: str) -> None:
    if field == "architecture":
        architecture(spec)(CLUSTER)
    else:
        function = UserFunction.load(field, spec)
        find_network(CLUSTER, DEMAND, **{field: function})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "spec", "message"),
    [
        ("routing", "{mine}:nothing", "nothing() returned NoneType, not a sequence of Route"),
        ("routing", "{mine}:fails", "fails() raised KeyError: 'no such server' (line 20)"),
        ("routing", "{mine}:words", "words(): network.routes[0]: expected an object, got str"),
        (
            "routing",
            "{mine}:off_the_links",
            "off_the_links(): network.routes[0]: there is no link from server 0 to 2",
        ),
        ("routing", "{mine}:half", "half(): network.routes: weights from server 0 to 2 sum to 0.5"),
        (
            "routing",
            "{mine}:fractions",
            "fractions(): network.routes[0].servers[0]: expected int, got 0.0",
        ),
        ("mode", "{mine}:nothing", "nothing() returned NoneType, not a torch_topoopt.plan.Network"),
        (
            "mode",
            "{mine}:without_rings",
            "without_rings(): demand: the network has no rings for group",
        ),
        ("architecture", "{mine}:nothing", "not a torch_topoopt.architectures.topology.Topology"),
        ("architecture", "{mine}:too_small", "too_small(): servers: 2 is not 4"),
        ("architecture", "{mine}:no_rings", "no_rings(): rings: none for the AllReduce"),
    ],
)
def test_results_are_checked_as_built_in_ones_are(
    mine: str, field: str, spec: str, message: str
) -> None:
    with pytest.raises(UserFunctionError) as raised:
        _use(field, spec.format(mine=mine))
    text = str(raised.value)
    assert text.startswith(f"{field}: ")
    assert "mine.py:" in text or field == "architecture"
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{mine}:missing", "routing: {mine} has no callable 'missing' at module level"),
        ("{mine}:number", "routing: {mine} has no callable 'number' at module level"),
        ("{mine}", "routing: {mine} names no function; write {mine}:NAME"),
        ("nowhere.py:f", "routing: there is no file nowhere.py"),
        ("broken.py:f", "raised SyntaxError: "),
        ("optimall", "invalid choice: 'optimall'"),
    ],
)
def test_a_name_that_cannot_be_used_is_one_line(
    mine: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def f(:\n")
    spec = given.format(mine=mine)
    assert main(["topology", "--servers", "4", "--routing", spec]) == 2
    err = capsys.readouterr().err
    assert message.format(mine=mine) in err
    assert err.count("\n") == 1
