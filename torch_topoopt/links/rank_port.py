"""Connections between two ranks that are no planned link."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.identity import Ends, Kind
from torch_topoopt.links.proof import Expected
from torch_topoopt.links.sockets import LISTEN_QUEUE, time_left

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping

    from torch_topoopt.links.handshake import Handshakes

_Of = TypeVar("_Of")


class RankPort(ABC):
    """The connections of one `kind` between one rank and others, while they are being opened.

    `name` is the address of this rank for the others. The listener is closed at the end.
    """

    kind: ClassVar[Kind]
    name: str

    def __init__(self, rank: int, listener: socket.socket) -> None:
        self._rank = rank
        self._listener = listener
        listener.listen(LISTEN_QUEUE)

    def __enter__(self) -> RankPort:
        return self

    def __exit__(self, *failure: object) -> None:
        self._listener.close()

    def connect(self, names: Mapping[int, str], handshakes: Handshakes, deadline: float) -> None:
        """Connects to the ports of other ranks (rank -> name)."""
        for rank, name in names.items():
            where = self._describe(self._rank, rank)
            try:
                connection = self._dial(name, time_left(deadline))
            except OSError as error:
                raise FabricError(f"{where}: {_reason(error)}{self._hint()}") from None
            handshakes.dial(self._ends(self._rank, rank), where, connection, connected=True)

    def expect(self, ranks: Iterable[int], handshakes: Handshakes) -> None:
        """Expects a connection from each of `ranks`."""
        names = {self._ends(rank, self._rank): self._describe(rank, self._rank) for rank in ranks}
        handshakes.expect(Expected(self._listener, names, self._admit, self._trusts))

    def _ends(self, source: int, target: int) -> Ends:
        return Ends(self.kind, source, -1, target, -1)

    def taken(self, proven: Mapping[Ends, _Of]) -> dict[int, _Of]:
        """Rank -> its connection among the `proven` ones."""
        of_rank = {
            ends.source if ends.target == self._rank else ends.target: of_connection
            for ends, of_connection in proven.items()
            if ends.kind is self.kind
        }
        return {rank: of_rank[rank] for rank in sorted(of_rank)}

    @abstractmethod
    def _dial(self, name: str, timeout_s: float) -> socket.socket:
        """Connects to another rank's port; raises OSError."""

    def _trusts(self, connection: socket.socket) -> bool:
        """Whether the process at the other end may be a rank of this job."""
        return True

    @abstractmethod
    def _admit(self, connection: socket.socket, ends: Ends) -> None:
        """Prepares a connection that has been proven."""

    def _hint(self) -> str:
        """A likely cause of a failed connection, for the end of the message."""
        return ""

    @staticmethod
    @abstractmethod
    def _describe(source: int, target: int) -> str:
        """Names a connection in messages."""


def _reason(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error.strerror or error)
