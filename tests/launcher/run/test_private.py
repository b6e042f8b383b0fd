"""A job on one machine is private: nothing of it listens where another machine could connect."""

from __future__ import annotations

import os
import signal
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from listening import Listener, listeners
from support.limits import limit_s
from support.refusals import refused
from torch.distributed import TCPStore

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.launcher.rendezvous import rendezvous
from torch_topoopt.launcher.run import options as run_options
from torch_topoopt.launcher.run import ranks
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Meets the other ranks; all fail together in the first attempt, and stay in the second.
MEET = """\
import os, pathlib, signal
import torch, torch.distributed as dist
dist.init_process_group()
total = torch.ones(1000)
dist.all_reduce(total)
assert total[0].item() == dist.get_world_size()
if os.environ["BESIDE"]:
    beside = dist.new_group(backend=os.environ["BESIDE"])
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
pathlib.Path(f"there-{os.environ['RANK']}-{attempt}").touch()
if attempt == os.environ["STAY_AT"]:
    signal.pause()
dist.barrier()
os._exit(7)
"""


@pytest.fixture
def script(tmp_path: Path, ring_plan: Callable[[int], Any]) -> Path:
    (tmp_path / "meet.py").write_text(MEET)
    ring_plan(2).save(tmp_path / "plan.json")
    return tmp_path


def _listeners_of_a_run(
    launcher: Any, until: Callable[..., None], *options: str, stay_at: int, beside: str = ""
) -> set[Listener]:
    """All that anything of a run listened at until its ranks had met in that attempt."""
    found: set[Listener] = set()

    def met() -> bool:
        found.update(listeners(launcher.mark))
        return len(list(launcher.folder.glob(f"there-*-{stay_at}"))) == 2

    process = launcher.start(
        "run", "--plan", "plan.json", "--max-restarts", str(stay_at), *options, "meet.py",
        STAY_AT=str(stay_at), BESIDE=beside, XDG_STATE_HOME=str(launcher.folder / "state"),
    )  # fmt: skip
    try:
        until(met, "training", 240)
        found.update(listeners(launcher.mark))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=limit_s(60))
    launcher.wait_for_its_end()
    assert found, "the ranks meet somewhere"
    return found


def test_nothing_of_a_job_on_one_machine_listens_beyond_loopback_also_after_a_restart(
    launcher: Any, script: Path, until: Callable[..., None]
) -> None:
    found = _listeners_of_a_run(launcher, until, stay_at=1, beside="gloo")
    assert [listener for listener in found if not listener.address.is_loopback] == []


def test_on_namespaces_only_the_management_address_is_on_the_machine_itself(
    launcher: Any, script: Path, until: Callable[..., None]
) -> None:
    try:
        netns_kernel.require()
    except FabricError as error:
        pytest.skip(f"no network namespaces here: {error}")
    found = _listeners_of_a_run(launcher, until, "--fabric", "netns", stay_at=0)
    here = os.readlink("/proc/self/ns/net")
    on_machine = {str(listener.address) for listener in found if listener.namespace == here}
    assert len(on_machine) == 1
    assert on_machine.pop().startswith("198.18.")  # fabric.netns.layout
    assert [listener for listener in found if listener.address.is_unspecified] == []


@pytest.mark.parametrize(
    "options",
    [
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "mine"],
        ["--rdzv-backend", "c10d", "--rdzv-conf", "read_timeout=5"],
        ["--rdzv-endpoint", "localhost:4711"],
    ],
)
def test_what_the_user_says_of_the_rendezvous_is_left_to_torch(
    options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "script.py").touch()
    parsed = run_options.parse(["--servers", "2", *options, str(tmp_path / "script.py")])
    before = dict(vars(parsed.torchrun))
    ranks._choose_rendezvous(parsed.torchrun, "127.0.0.1")
    after = vars(parsed.torchrun)
    assert {name: after[name] for name in before if name.startswith("rdzv")} == {
        name: value for name, value in before.items() if name.startswith("rdzv")
    }


@pytest.mark.parametrize("fixed", [False, True])
def test_ranks_that_start_again_find_nothing_of_those_before_them(fixed: bool) -> None:
    """A gloo group would connect to ports at which no process listens any more."""
    port = 0
    if fixed:
        with socket.create_server(("127.0.0.4", 0)) as free:
            port = free.getsockname()[1]
    meeting = rendezvous.OneMachine("job", "127.0.0.4", port)
    for _ in range(3):
        where = meeting.next_rendezvous().bootstrap_store_info
        assert where.master_port == port or not fixed
        store = TCPStore(where.master_addr, where.master_port, timeout=timedelta(seconds=20))
        assert not store.check(["address of rank 0"])
        store.set("address of rank 0", "127.0.0.1:4711")


def test_a_store_listens_at_an_address_of_this_machine_or_is_refused() -> None:
    store = rendezvous.listening_store("127.0.0.3", 0)
    with refused(FabricError, "master-port", store.port, "127.0.0.3"):
        rendezvous.listening_store("127.0.0.3", store.port)
    with refused(OSError, "refused"):
        socket.create_connection(("127.0.0.1", store.port), timeout=5)
    with refused(FabricError, "master-addr", "192.0.2.1"):
        rendezvous.listening_store("192.0.2.1", 0)
