"""Whether the links of this process's jobs are encrypted."""

from __future__ import annotations

import os

from torch_topoopt.links.errors import FabricError
from torch_topoopt.runtime.versions import BuildMismatchError, check_tls

ENCRYPT_VARIABLE = "TOPOOPT_ENCRYPT"


def encryption_asked() -> bool:
    """What TOPOOPT_ENCRYPT says.

    Raises FabricError for a value that is neither 0 nor 1, or if this build cannot encrypt.
    """
    value = os.environ.get(ENCRYPT_VARIABLE, "0")
    if value not in ("0", "1"):
        raise FabricError(f"{ENCRYPT_VARIABLE}: {value!r} is neither 0 (off) nor 1 (on)")
    if value == "1":
        try:
            check_tls()
        except BuildMismatchError as error:
            raise FabricError(f"{ENCRYPT_VARIABLE}: {error}") from None
    return value == "1"
