"""From an entry of the cluster file to the driver of that switch.

To add a kind: a line in DRIVERS, and a function `from_entry(entry) -> CircuitSwitch` in the module
it names, which raises DocumentError (see `read_options`) for options that it does not know. Modules
are imported when a switch of their kind is opened: their libraries may not be installed everywhere.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.switches.switch import CircuitSwitch

# kind -> module of torch_topoopt.fabric
DRIVERS = {
    "sonic-ocs": "sonic_ocs",
    "polatis-restconf": "polatis_restconf",
    "telescent": "telescent",
    "manual": "manual_panel",
    "memory": "memory_switch",
}

_DUPLEX = frozenset({"telescent", "manual"})

# kind -> libraries that only the extra `ocs` installs
LIBRARIES = {"telescent": ("paramiko",)}

_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def open_switch(entry: SwitchEntry) -> CircuitSwitch:
    """The driver of `entry`, which connects when it first must.

    Raises DocumentError for an unknown kind, bad options or a library that is not there,
    SwitchError for a bad address.
    """
    if entry.kind not in DRIVERS:
        near = difflib.get_close_matches(entry.kind, DRIVERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DocumentError(
            f"switch {entry.name}: kind: {entry.kind!r} is not one of {', '.join(DRIVERS)}{hint}"
        )
    for library in LIBRARIES.get(entry.kind, ()):
        if importlib.util.find_spec(library) is None:
            raise DocumentError(
                f"switch {entry.name}: kind: {entry.kind} needs {library}, which is not installed; "
                "pip install 'torch-topoopt[ocs]'"
            )
    module = importlib.import_module(f"torch_topoopt.fabric.switches.{DRIVERS[entry.kind]}")
    switch: CircuitSwitch = module.from_entry(entry)
    return switch


def is_duplex(entry: SwitchEntry) -> bool:
    """Whether its circuits lead both ways, by its kind: without a connection."""
    return entry.kind in _DUPLEX or entry.options.get("duplex") is True


def read_options(entry: SwitchEntry, known: dict[str, type]) -> dict[str, Any]:
    """The options of `entry`, those that are given; raises DocumentError naming a wrong one.

    `known`: name -> str, int, float or bool. A number may be written without decimals. A name in
    `_s` is a time, which is greater than 0.
    """
    options: dict[str, Any] = {}
    for name, value in entry.options.items():
        where = f"switch {entry.name}: options.{name}"
        if name not in known:
            names = ", ".join(known) or "none"
            raise DocumentError(f"{where}: {entry.kind} has no such option (known: {names})")
        kind = known[name]
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits:
            raise DocumentError(f"{where}: {value!r} is not {_NAMES[kind]}")
        if name.endswith("_s") and not 0 < float(value) < float("inf"):
            raise DocumentError(f"{where}: {value!r} is not a time in seconds greater than 0")
        options[name] = kind(value)
    return options
