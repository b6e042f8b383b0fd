"""One start of the ranks on several hosts, whose launchers end and restart it together.

If ranks of one host fail, the other hosts are notified through the store of server 0, and end their
ranks, too, even those in no collective. They also do so if server 0 takes more hosts into the job.
Then server 0 collects all outcomes. A host with a silent launcher is lost; the others may continue
without it.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Protocol

from torch.distributed import DistError, PrefixStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.meeting import broadcast, receive

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed.elastic.rendezvous import RendezvousStoreInfo

    from torch_topoopt.links.meeting import Meeting

    class LauncherMeeting(Meeting, Protocol):
        """The rendezvous of the launchers; its errors are FabricErrors."""

        def has_published(self, topic: str, rank: int) -> bool: ...


_FAILED = "failed"
_GROWS = "grows"
_LOOK_S = 0.2
_APART_S = 300.0  # between the ends of two hosts' ranks, where all went well; torch's own limit
_NOTICE_S = 10.0  # for a launcher to notice a failure, which it polls for
_END_S = 60.0  # for its ranks to end afterwards: torch gives them 30 s


class HostsAttempt(RendezvousHandler):  # type: ignore[misc]
    """This host, `server` of `hosts`, in one attempt; the rendezvous of its agent.

    `store` is for this attempt only, `where` that of its ranks, `of_ranks` is kept until the end.
    """

    def __init__(
        self,
        meeting: LauncherMeeting,
        store: Any,
        where: RendezvousStoreInfo,
        *,
        server: int,
        hosts: int,
        run_id: str,
        of_ranks: Any = None,
    ) -> None:
        self._meeting = meeting
        self._store = store
        self._where = where
        self._server = server
        self._hosts = hosts
        self._run_id = run_id
        self._of_ranks = of_ranks
        self._noticed = False

    def get_backend(self) -> str:
        """Its name."""
        return "topoopt-hosts"

    @property
    def use_agent_store(self) -> bool:
        """Yes: no rank hosts one."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Returns at once: the hosts have met."""
        store = PrefixStore("agents", self._store)
        return RendezvousInfo(store, self._server, self._hosts, self._where)

    def num_nodes_waiting(self) -> int:
        """1 if ranks of another host have failed, or the job grows: this host's ranks end then."""
        return int(self._is_over())

    def is_closed(self) -> bool:
        """Never: it ends with the launcher."""
        return False

    def set_closed(self) -> None:
        """Other hosts are notified by `settle`."""

    def get_run_id(self) -> str:
        """That of the launcher's configuration."""
        return self._run_id

    def shutdown(self) -> bool:
        """Ends the store of the ranks, on server 0."""
        self._of_ranks = None
        return True

    def has_failed(self) -> bool:
        """Whether ranks of any host have failed; raises FabricError without server 0."""
        return self._has(_FAILED)

    def grow(self, members: Sequence[int]) -> None:
        """On server 0: ends the attempt on all hosts, for one on `members` of the whole cluster."""
        self._store.set(_GROWS, json.dumps(list(members)))

    def grown(self) -> tuple[int, ...] | None:
        """The members of the next attempt, if server 0 ended this one for it."""
        return tuple(json.loads(self._store.get(_GROWS))) if self._has(_GROWS) else None

    def _is_over(self) -> bool:
        return self.has_failed() or self._has(_GROWS)

    def _has(self, key: str) -> bool:
        try:
            return bool(self._store.check([key]))
        except DistError:
            raise FabricError(
                "the connection to server 0 broke; did `topoopt run` end there?"
            ) from None

    def notice(self, *, failed: bool) -> None:
        """Marks the attempt as over on this launcher; `failed`: notifies the others, too."""
        try:
            if failed:
                self._store.set(_FAILED, "")
        except DistError:
            return  # `settle` reports the error
        if not self._noticed:
            self._noticed = True
            self._meeting.publish("noticed", "")

    def settle(self, outcome: str) -> tuple[dict[int, str], tuple[int, ...]]:
        """The `outcome` of each host by its server, and the lost servers; on all hosts.

        Raises FabricError without server 0, and if the others have declared this host lost.
        """
        self.notice(failed=False)
        self._meeting.publish("outcome", outcome)
        if self._server == 0:
            outcomes = self._collect()
            lost = [server for server in range(self._hosts) if server not in outcomes]
            broadcast(self._meeting, "settled", [list(outcomes.items()), lost])
        limit_s = _APART_S + _NOTICE_S + _END_S
        listed, lost = receive(self._meeting, "settled", time.monotonic() + limit_s)
        if self._server in lost:
            raise FabricError("this host's ranks ended too late: the others went on without it")
        return {int(server): text for server, text in listed}, tuple(lost)

    def _collect(self) -> dict[int, str]:
        """On server 0: the outcomes of the present hosts."""
        limit = time.monotonic() + _APART_S
        hosts = range(self._hosts)
        while not self._is_over() and time.monotonic() < limit:
            if all(self._meeting.has_published("outcome", server) for server in hosts):
                break
            time.sleep(_LOOK_S)
        there = self._published("noticed", hosts, _NOTICE_S)
        return self._published("outcome", there, _END_S)

    def _published(self, topic: str, servers: Iterable[int], limit_s: float) -> dict[int, str]:
        deadline = time.monotonic() + limit_s
        found = {}
        for server in servers:
            try:
                found.update(self._meeting.collect(topic, [server], deadline))
            except FabricError:
                continue
        return found
