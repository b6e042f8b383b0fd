"""The state after a restart: flows of reports that have ended in part, moved, or come again."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

from route_control.controller.test_route_state import leaf_spine_file

from torch_topoopt.route_control.controller.request_handler import (
    AssignmentOptions,
    RequestHandler,
)
from torch_topoopt.route_control.controller.store import RouteStore

if TYPE_CHECKING:
    from pathlib import Path

FILE = leaf_spine_file(3, 3, 3)


class StoredController:
    def __init__(self, path: Path, *, limits_rates: bool = False) -> None:
        self.store = RouteStore(path, FILE)
        options = AssignmentOptions(limits_rates=limits_rates, precomputed=0)
        self.handler = RequestHandler(self.store, "local-search", lambda hosts: None, options, 0.0)
        self._numbers = itertools.count()

    def send(self, path: str, method: str = "POST", **body: Any) -> dict[str, Any]:
        text = json.dumps({"request": str(next(self._numbers)), **body}).encode()
        answer: dict[str, Any] = json.loads(self.handler.change(method, path, text, 0.0))
        return answer

    def start(self, job: str, *ids: str) -> None:
        """The answer has what the state has, also where the report is a repeated one."""
        answer = self.send("/v1/flows", job=job, flows=[flow(name) for name in ids])
        state = self.handler.state
        assert answer["epoch"] == state.epoch
        assert [found["id"] for found in answer["flows"]] == list(ids)
        for found in answer["flows"]:
            record = state.flows[found["id"]]
            path = None if record.path is None else [FILE.numbered[at] for at in record.path]
            assert found["path"] == path
            assert found["source_ports"] == state.source_ports(found["id"])
            assert found["rate_bits_per_s"] == record.rate_bits_per_s

    def set_ports(self, name: str, random_: random.Random) -> None:
        """Of the host of this flow, to its target."""
        source, target = flow(name)["source"], flow(name)["target"]
        paths = FILE.network().paths(FILE.tor_of[source], FILE.tor_of[target])
        some = random_.sample(paths, min(2, len(paths)))
        table = {str(4000 + i): [FILE.numbered[at] for at in path] for i, path in enumerate(some)}
        self.send(f"/v1/hosts/{source}", "PUT", ports={target: table})

    def rows(self, table: str) -> int:
        (count,) = self.store._database.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(count)

    def check_restart(self) -> None:
        """Loading gives the same flows in the same order."""
        state, options = self.handler.state, self.handler._how
        loaded = self.store.load("local-search", limits_rates=options.limits_rates)
        assert list(loaded.flows.items()) == list(state.flows.items())
        assert (loaded.epoch, loaded.dead) == (state.epoch, state.dead)


def flow(name: str) -> dict[str, Any]:
    number = int(name[1:])
    source, target = number % 9, (number + 3 + number // 9) % 9
    return {"id": name, "source": f"h{source}", "target": f"h{target}", "bytes": 10**6}


def test_a_flow_that_ended_alone_may_start_again(tmp_path: Path) -> None:
    controller = StoredController(tmp_path / "s")
    controller.start("j", "f0", "f1", "f2")
    controller.send("/v1/flows/end", ids=["f0", "f0"])
    controller.check_restart()
    controller.start("j", "f1", "f0")  # f1 is there already
    controller.check_restart()
    assert list(controller.handler.state.flows) == ["f1", "f2", "f0"]
    assert controller.rows("ended") == 1
    controller.send("/v1/flows/end", ids=["f1", "f2"])
    controller.check_restart()
    assert (controller.rows("ended"), controller.rows("reports")) == (0, 1)
    controller.send("/v1/paths/degraded", flow="f0")
    controller.check_restart()
    assert controller.rows("changes") == 1
    controller.send("/v1/flows/end", ids=["f0"])
    controller.check_restart()
    assert [controller.rows(name) for name in ("reports", "ended", "changes")] == [0, 0, 0]


def test_a_repeated_report_is_answered_with_the_ports_and_paths_of_now(tmp_path: Path) -> None:
    controller = StoredController(tmp_path / "s")
    names = ("f0", "f1")
    state = controller.handler.state
    paths = []
    for ports in ((), (4000,), (4001, 4002)):
        path = ["leaf0", "spine1", "leaf1"]
        table = {str(port): path for port in ports}
        controller.send("/v1/hosts/h0", "PUT", ports={"h3": table} if ports else {})
        for _ in range(3):
            controller.start("j", *names)
            paths.append(state.flows["f0"].path)
            assert state.source_ports("f0") == list(ports)
            controller.send("/v1/flows/end", ids=names)
    assert len(set(paths[3:])) == 1
    controller.send("/v1/links", down=[["leaf0", "spine1"]])
    controller.start("j", *names)


def test_every_state_is_restored(tmp_path: Path) -> None:
    for limits_rates in (False, True):
        random_ = random.Random(3)
        controller = StoredController(tmp_path / f"{limits_rates}", limits_rates=limits_rates)
        for step in range(150):
            there = list(controller.handler.state.flows)
            draw = random_.random()
            if draw < 0.2:
                names = [f"f{i}" for i in random_.sample(range(40), 6)]
                controller.start("j", *names)
            elif draw < 0.4:  # a phase, which comes and goes
                names = [f"f{i}" for i in range(40, 46)]
                controller.send("/v1/flows/end", ids=[name for name in names if name in there])
                controller.start("j", *names)
            elif draw < 0.45:
                controller.set_ports(f"f{random_.randrange(46)}", random_)
            elif draw < 0.8 and there:
                ids = random_.sample(there, min(4, len(there)))
                controller.send("/v1/flows/end", ids=ids)
            elif draw < 0.9 and there:
                controller.send("/v1/paths/degraded", flow=random_.choice(there))
            else:
                cable = list(random_.choice(FILE.links).ends)
                controller.send("/v1/links", **{random_.choice(["down", "up"]): [cable]})
            controller.check_restart()
            if step % 20 == 10:
                controller.handler._forget()  # as after a restart
        assert controller.rows("changes") <= len(controller.handler.state.flows)
