"""The queue: versions of its file, transactions that check first, rules that the tables keep."""

from __future__ import annotations

import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest
from shared_cluster import make_cluster, program, used_servers
from support.refusals import refused

from torch_topoopt.tools.queue import jobs as j
from torch_topoopt.tools.queue import service
from torch_topoopt.tools.queue.partition import lay_out
from torch_topoopt.tools.queue.schema import MIGRATIONS
from torch_topoopt.tools.queue.service import bind_cluster, daemon_pid, only_daemon
from torch_topoopt.tools.queue.store import FILE, Event, Store, StoreError, StoreLockedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch_topoopt.plan import Plan


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state", create=True)


def _submit(store: Store, folder: Path, plan: Plan) -> j.QueuedJob:
    number = store.submit("job", plan.cluster.servers, 1, plan.to_json(), program(folder))
    return store.job(number)


def test_a_job_is_the_same_after_the_file_was_opened_again(
    store: Store, tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    job = _submit(store, tmp_path, ring_plan(2))
    layout = lay_out(ring_plan(2), make_cluster(2), ("h0", "h1"), "lookahead")
    assert store.assign(job, layout, j.PREPARING, "gets servers")
    store.close()
    again = Store(tmp_path / "state").job(job.id)
    assert (again.state, again.layout, again.order) == (j.PREPARING, layout, 1)
    assert again.spec == program(tmp_path)


def test_a_change_needs_the_state_that_was_read(
    store: Store, tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    job = _submit(store, tmp_path, ring_plan(2))
    other = Store(tmp_path / "state")
    before = store.changes()
    assert other.cancel(job.id) == j.CANCELLED
    assert store.changes() != before
    layout = lay_out(ring_plan(2), make_cluster(2), ("h0", "h1"), "switch")
    assert not store.assign(job, layout, j.PREPARING, "gets servers")
    assert not store.move(job, j.FAILED, "failed")
    assert store.job(job.id).state == j.CANCELLED
    assert "failed" not in [event.text for _, event in store.events()]


def test_the_tables_themselves_refuse_two_jobs_on_one_side_or_one_server(
    store: Store, tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    first, second = (_submit(store, tmp_path, ring_plan(2)) for _ in range(2))
    near = lay_out(ring_plan(2), make_cluster(3), ("h0", "h1"), "switch")
    assert store.assign(first, near, j.PREPARING, "gets servers")
    same = lay_out(ring_plan(2), make_cluster(3), ("h1", "h2"), "switch")
    with pytest.raises(sqlite3.IntegrityError):
        store.assign(second, same, j.PREPARING, "gets servers")
    assert store.job(second.id).state == j.QUEUED  # nothing of it was done
    far = lay_out(ring_plan(2), make_cluster(3), ("h1", "h2"), "lookahead")
    assert store.assign(second, far, j.PREPARING, "gets servers")
    assert store.take_servers(store.job(first.id), j.STARTING, "starts")
    with pytest.raises(sqlite3.IntegrityError):
        store.take_servers(store.job(second.id), j.STARTING, "starts")
    assert used_servers(store) == {"h0": first.id, "h1": first.id}


def test_an_older_file_is_upgraded_by_the_daemon_and_its_jobs_are_kept(
    tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    old = sqlite3.connect(folder / FILE)
    old.executescript(MIGRATIONS[0])
    values = ("old", "queued", 1.0, 1.0, 2, 1, ring_plan(2).to_json(), program(tmp_path).to_json())
    old.execute(
        "INSERT INTO jobs (name, state, submitted_at, changed_at, servers, ports, plan, spec) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    )
    old.execute("PRAGMA user_version=1")
    old.commit()
    old.close()
    with refused(StoreError, "version 1", "topoopt cluster daemon"):
        Store(folder)
    store = Store(folder, upgrade=True)
    assert [job.name for job in store.jobs()] == ["old"]
    assert [e.text for _, e in store.events()] == [
        f"upgraded the queue from version 1 to {len(MIGRATIONS)}"
    ]
    store.close()
    assert Store(folder).job(1).state == j.QUEUED


def test_a_newer_file_is_refused(store: Store, tmp_path: Path) -> None:
    store.close()
    newer = sqlite3.connect(tmp_path / "state" / FILE)
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with refused(StoreError, "version 99", "torch_topoopt"):
        Store(tmp_path / "state", create=True, upgrade=True)


def test_what_is_no_queue_is_refused(tmp_path: Path) -> None:
    with refused(StoreError, "queue"):
        Store(tmp_path)
    (tmp_path / FILE).write_text("not a database, but long enough to be looked at" * 10)
    with refused(StoreError, "database"):
        Store(tmp_path)


def test_an_unknown_job_is_an_error_with_its_number(store: Store) -> None:
    with refused(StoreError, "job 7"):
        store.cancel(7)


def test_there_is_one_daemon_for_a_queue(tmp_path: Path) -> None:
    assert daemon_pid(tmp_path) is None
    with only_daemon(tmp_path):
        pid = daemon_pid(tmp_path)
        assert pid
        with (
            refused(StoreError, pid, "daemon"),
            only_daemon(tmp_path),
        ):
            pass
    assert daemon_pid(tmp_path) is None


def test_the_cluster_file_may_not_change_under_jobs_that_have_servers(
    store: Store, tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    bind_cluster(store, make_cluster(4), change=False)
    job = _submit(store, tmp_path, ring_plan(4))
    with refused(StoreError, "restart", "daemon"):
        bind_cluster(store, make_cluster(3), change=False)
    layout = lay_out(ring_plan(4), make_cluster(4), ("h0", "h1", "h2", "h3"), "switch")
    store.assign(job, layout, j.PREPARING, "gets servers")
    with refused(StoreError, "job 1"):
        bind_cluster(store, make_cluster(5), change=True)
    bind_cluster(store, make_cluster(4), change=True)


def test_a_job_that_a_smaller_cluster_can_never_run_fails_and_says_so(
    store: Store, tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    bind_cluster(store, make_cluster(4), change=False)
    _submit(store, tmp_path, ring_plan(4))
    bind_cluster(store, make_cluster(3), change=True)
    assert store.job(1).state == j.FAILED
    assert "needs 4, cluster lab has 3" in str(store.job(1).problem)


def test_the_queue_and_what_is_beside_it_are_private_also_one_of_an_older_version(
    tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    folder = tmp_path / "state"
    store = Store(folder, create=True)
    _submit(store, tmp_path, ring_plan(2))
    names = [FILE, f"{FILE}-wal", f"{FILE}-shm"]
    assert {name: (folder / name).stat().st_mode & 0o777 for name in names} == dict.fromkeys(
        names, 0o600
    )
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in names:
        (folder / name).chmod(0o644)
    Store(folder)
    assert [(folder / name).stat().st_mode & 0o777 for name in names] == [0o600] * 3


def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    Store(folder, create=True).close()
    folder.chmod(0o777)
    with refused(StoreError, "state", folder, "mode 777"):
        Store(folder)
    folder.chmod(0o700)
    (folder / FILE).rename(folder / "elsewhere")
    (folder / FILE).symlink_to(folder / "elsewhere")
    with refused(StoreError, "symbolic links"):
        Store(folder)


def test_a_queue_that_stays_locked_is_one_line(store: Store, tmp_path: Path) -> None:
    store.wait_for_locks(0)
    holder = sqlite3.connect(tmp_path / "state" / FILE, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with refused(StoreLockedError, "queue", "locked"):
        store.log(None, "hello")
    holder.execute("ROLLBACK")
    store.log(None, "hello")
    assert [event.text for _, event in store.events()] == ["hello"]


class _Steps:
    """A daemon whose step writes to the queue."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.steps = 0

    def recover(self) -> None:
        self._store.log(None, "recovered")

    def step(self) -> bool:
        self.steps += 1
        self._store.log(None, f"step {self.steps}")
        return False


def test_the_daemon_outlives_a_lock_and_says_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_BUSY_S", 0)
    holder = sqlite3.connect(tmp_path / "state" / FILE, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    shown: list[str] = []

    def show(event: Event) -> None:
        shown.append(event.text)
        if "keeps the queue locked" in event.text:
            holder.execute("ROLLBACK")

    service.serve(_Steps(store), store, threading.Event(), show, until_idle=True)  # type: ignore[arg-type]
    locked, *rest = shown
    assert locked == "another process keeps the queue locked; trying again until it is free"
    assert "recovered" in rest
    assert any(text.startswith("the queue is free again after ") for text in rest)


def test_the_daemon_gives_up_on_a_lock_that_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_BUSY_S", 0)
    monkeypatch.setattr(service, "_LOCKED_LIMIT_S", 0.05)
    holder = sqlite3.connect(tmp_path / "state" / FILE, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with refused(StoreError, "queue", "locked", 0.05):
        service.serve(_Steps(store), store, threading.Event(), lambda event: None)  # type: ignore[arg-type]
