"""Where hosts come to a job of `--nnodes MIN:MAX`, before its start and while it runs.

It is a part of server 0's store. A host writes its facts, and waits. Server 0 answers when it
takes the host in, or why it does not. Each coming has a number, because a host may come again after
its launcher was lost. Servers have the numbers of the whole cluster file here.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError, PrefixStore

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.secret import given_secret, sign, verified

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

Facts = dict[str, str]  # of a host that has come: its version, and the digest of its cluster file

_LOOK_S = 0.1
_ALIVE_S = 5.0  # for a waiting host to confirm that it still waits
_READ_S = 5.0  # for hosts to read that they are refused, before the store ends


class Door:
    """Server 0 sees who has come; `gone` describes the failure of a connection to its store."""

    def __init__(self, store: Any, gone: str) -> None:
        self._store = PrefixStore("door", store)
        self._gone = gone
        self._secret = given_secret()
        self._dealt: dict[int, int] = {}  # server -> the last of its comings that was answered

    def come(self, server: int, facts: Facts) -> int:
        """Called by a host; returns the number of this coming."""
        try:
            number = int(self._store.add(f"comings/{server}", 1))
            self._set(f"facts/{server}/{number}", facts)
        except DistError:
            raise FabricError(self._gone) from None
        return number

    def await_answer(self, server: int, number: int, deadline: float) -> Any:
        """Called by a host that has come: the value that server 0 takes it in with.

        Raises FabricError if server 0 refuses, and at the deadline, with the reason known so far.
        """
        confirmed, reason = "", "server 0 has not answered; has it the same --nnodes and secret?"
        own = f"{server}/{number}"
        try:
            while time.monotonic() < deadline:
                if (called := self._get(f"call/{own}")) is not None and called != confirmed:
                    self._set(f"waits/{own}", called)
                    confirmed = called
                if (answer := self._get(f"answer/{own}")) is not None:
                    if "later" not in answer:
                        self._set(f"read/{own}", "")
                    if "error" in answer:
                        raise FabricError(answer["error"])
                    if "value" in answer:
                        return answer["value"]
                    reason = answer["later"]
                time.sleep(_LOOK_S)
        except DistError:
            raise FabricError(self._gone) from None
        raise FabricError(f"this host was not taken into the job in time: {reason}")

    def waiting(self, servers: Iterable[int]) -> dict[int, Facts]:
        """Called by server 0: those of `servers` that have come and have no answer yet."""
        found = {}
        for server in servers:
            number = self._last(server)
            if number > self._dealt.get(server, 0):
                facts = self._seen(f"facts/{server}/{number}")
                if facts is not None:
                    found[server] = facts
        return found

    def still_waiting(self, servers: Collection[int]) -> list[int]:
        """Those of `servers` that confirm it; the others are forgotten until they come again."""
        call = str(time.monotonic_ns())
        for server in servers:
            self._set(f"call/{server}/{self._last(server)}", call)
        deadline = time.monotonic() + _ALIVE_S
        missing = set(servers)
        while missing and time.monotonic() < deadline:
            missing = {s for s in missing if self._seen(f"waits/{s}/{self._last(s)}") != call}
            if missing:
                time.sleep(_LOOK_S)
        for server in missing:
            self._dealt[server] = self._last(server)
        return [server for server in servers if server not in missing]

    def take_in(self, servers: Iterable[int], value: Any) -> None:
        """Answers hosts that wait: they are in the job, with this value for all of them."""
        for server in servers:
            self._answer(server, {"value": value})

    def postpone(self, servers: Iterable[int], reason: str) -> None:
        """The hosts wait on; if that is for too long, they know the reason."""
        for server in servers:
            self._set(f"answer/{server}/{self._last(server)}", {"later": reason})

    def refuse(self, servers: Collection[int], error: str) -> None:
        """Ends hosts that wait, and waits until they have read the error."""
        numbers = {server: self._last(server) for server in servers}
        for server in servers:
            self._answer(server, {"error": error})
        deadline = time.monotonic() + _READ_S
        while any(self._seen(f"read/{s}/{n}") is None for s, n in numbers.items()):
            if time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_S)

    def _answer(self, server: int, answer: dict[str, Any]) -> None:
        number = self._last(server)
        self._dealt[server] = number
        self._set(f"answer/{server}/{number}", answer)

    def _last(self, server: int) -> int:
        return int(self._store.add(f"comings/{server}", 0))

    def _set(self, key: str, value: Any) -> None:
        self._store.set(key, sign(self._secret, key, json.dumps(value)))

    def _seen(self, key: str) -> Any:
        """As `_get`, on server 0: values with another secret are not of hosts of this job."""
        try:
            return self._get(key)
        except FabricError:
            return None

    def _get(self, key: str) -> Any:
        """The value; None if there is none yet."""
        if not self._store.check([key]):
            return None
        text = self._store.get(key).decode("utf-8", "replace")
        return json.loads(verified(self._secret, key, text))
