"""Changes of switches, made one after the other beside the daemon's loop.

A change takes milliseconds on an optical switch and minutes on a patch panel. It runs in a thread,
so that a flip never waits for it. Its only state is in the switches and the database: after a kill,
the next daemon requests the same change again.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster.switches import Switches
from torch_topoopt.fabric.switches.open_switch import open_switch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.switches.circuits import Difference
    from torch_topoopt.fabric.switches.switch import CircuitSwitch

    Changes = dict[str, Difference]
    Cables = Mapping[str, Sequence[tuple[str, str]]]


class SwitchWork:
    """Asks the switches of a cluster in the order of the calls; `on_done` is called after each."""

    def __init__(
        self,
        *,
        open_switch: Callable[[SwitchEntry], CircuitSwitch] = open_switch,
        on_done: Callable[[], None] = lambda: None,
    ) -> None:
        self._open = open_switch
        self._on_done = on_done
        self._drivers: dict[str, CircuitSwitch] = {}
        self._waiting: queue.SimpleQueue[tuple[ClusterFile, Cables, Future[Changes]]]
        self._waiting = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="switches").start()

    def configure(self, part: ClusterFile, cables: Cables) -> Future[Changes]:
        """Makes `cables`, and nothing else, of the sockets of `part`; see Switches.configure.

        Without switches, as in a HammingMesh, that is done at once.
        """
        done: Future[Changes] = Future()
        if not part.switches and not cables:
            done.set_result({})
            return done
        self._waiting.put((part, cables, done))
        return done

    def preview(self, part: ClusterFile, cables: Cables) -> Changes:
        """The changes that `configure` would make; asks the switches at once, in this thread."""
        if not part.switches and not cables:
            return {}
        with Switches(part, open_switch=self._open) as switches:
            return switches.preview(cables)

    def _run(self) -> None:
        while True:
            part, cables, done = self._waiting.get()
            try:
                with Switches(part, open_switch=self._driver) as switches:
                    changes = switches.configure(cables)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(changes)
            self._on_done()

    def _driver(self, entry: SwitchEntry) -> CircuitSwitch:
        """The driver of a switch, opened once; it reconnects on demand after close()."""
        if entry.name not in self._drivers:
            self._drivers[entry.name] = self._open(entry)
        return self._drivers[entry.name]
