"""The rendezvous of a job's processes: each publishes, the others collect, rank 0 broadcasts."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# the topic of rank 0's first answer, in all versions: with an error if they differ
FIRST_ANSWER = "versions"


class Meeting(Protocol):
    """The rendezvous where ranks publish the values that others need to connect."""

    def publish(self, topic: str, text: str) -> None:
        """Publishes to all ranks; once per topic."""
        ...

    def collect(self, topic: str, ranks: Iterable[int], deadline: float) -> dict[int, str]:
        """Waits until all of `ranks` have published; rank -> text. FabricError: those missing."""
        ...


def exchange(
    meeting: Meeting, topic: str, own: Any, ranks: Iterable[int], deadline: float
) -> list[Any]:
    """Publishes `own`, JSON; the values of all `ranks`, in their order. Raises as collect()."""
    meeting.publish(topic, json.dumps(own))
    texts = meeting.collect(topic, ranks := [*ranks], deadline)
    return [json.loads(texts[rank]) for rank in ranks]


def broadcast(meeting: Meeting, topic: str, value: Any) -> None:
    """Publishes `value`, JSON, on rank 0; `receive` returns it on the others."""
    meeting.publish(topic, json.dumps({"value": value}))


def broadcast_error(meeting: Meeting, topic: str, error: str) -> None:
    """Publishes an error on rank 0; `receive` raises it on the others."""
    meeting.publish(topic, json.dumps({"error": error}))


@contextmanager
def failure_broadcast(meeting: Meeting, topic: str, where: str = "") -> Iterator[None]:
    """On rank 0, broadcasts an exception of the block instead of a value, and reraises it."""
    try:
        yield
    except BaseException as error:
        broadcast_error(meeting, topic, where + (str(error) or type(error).__name__))
        raise


def receive(meeting: Meeting, topic: str, deadline: float) -> Any:
    """The value that rank 0 broadcasts; raises FabricError for an error, and at `deadline`."""
    message: dict[str, Any] = json.loads(meeting.collect(topic, [0], deadline)[0])
    if "error" in message:
        raise FabricError(message["error"])
    return message["value"]
