"""Whether long payloads of this process's links are sent from where they lie."""

from __future__ import annotations

import os

from torch_topoopt.links.errors import FabricError
from torch_topoopt.runtime.link_options.transport import TCP

ZERO_COPY_VARIABLE = "TOPOOPT_ZERO_COPY"
_STATES = {"0": "off", "1": "on", "always": "always"}


def zero_copy_asked(transport: str, *, encrypted: bool) -> str:
    """What TOPOOPT_ZERO_COPY says, as a LinkSpec has it: "off"; "on": until the kernel copies all
    the same; "always": also then.

    Raises FabricError for another value, and where links are no plain TCP.
    """
    value = os.environ.get(ZERO_COPY_VARIABLE, "0")
    if value not in _STATES:
        raise FabricError(f"{ZERO_COPY_VARIABLE}: {value!r} is none of 0, 1 and always")
    if value != "0" and (why := why_no_zero_copy(transport, encrypted=encrypted)):
        raise FabricError(f"{ZERO_COPY_VARIABLE}: {value}, but {why}; set it to 0")
    return _STATES[value]


def why_no_zero_copy(transport: str, *, encrypted: bool) -> str:
    """Why links of this kind have no sends without copy; "" where they may."""
    if transport != TCP:
        return f"a link over {transport} does not send by TCP"
    return "what an encrypted link sends is a copy" if encrypted else ""
