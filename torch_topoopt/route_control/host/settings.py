"""The controller's address and options, from the environment of a rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.environment import CONTROLLER_VARIABLE
from torch_topoopt.fabric.credentials import CredentialError, Password, PasswordSource
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VARIABLE = "TOPOOPT_CONTROLLER_TOKEN_FILE"
HOST_VARIABLE = "TOPOOPT_CONTROLLER_HOST"
THRESHOLD_VARIABLE = "TOPOOPT_CONTROLLER_THRESHOLD"

_URL = re.compile(r"http://([^/\s:@\[\]]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})/?")
_THRESHOLD = "1MB"


@dataclass(frozen=True)
class ControllerSettings:
    """`host` is this host's name in the network file ("": found by its address). Flows of fewer
    than `threshold_bytes` in an iteration are left to ECMP. A call takes `limit_s` at most."""

    url: str
    token: Password
    host: str = ""
    threshold_bytes: int = 10**6
    limit_s: float = 1.0


def controller_settings(environment: Mapping[str, str]) -> ControllerSettings | None:
    """None without TOPOOPT_CONTROLLER; raises FabricError for invalid settings."""
    url = environment.get(CONTROLLER_VARIABLE, "")
    if not url:
        return None
    check_url(CONTROLLER_VARIABLE, url)
    path = environment.get(TOKEN_VARIABLE, "")
    if not path:
        raise FabricError(
            f"{TOKEN_VARIABLE}: not set; with {CONTROLLER_VARIABLE}, name the file that "
            "`topoopt controller --token-file` has"
        )
    text = environment.get(THRESHOLD_VARIABLE, _THRESHOLD)
    try:
        token = PasswordSource(file=path).read()
        threshold = parse_bytes(text)
    except CredentialError as error:
        raise FabricError(f"{TOKEN_VARIABLE}: {error}") from None
    except ValueError as error:
        raise FabricError(f"{THRESHOLD_VARIABLE}: {error}") from None
    host = environment.get(HOST_VARIABLE, "")
    return ControllerSettings(url.rstrip("/"), token, host, int(threshold))


def check_url(where: str, url: str) -> None:
    """Raises FabricError unless it is http://HOST:PORT."""
    match = _URL.fullmatch(url)
    if match is None or not 0 < int(match[2]) < 2**16:
        raise FabricError(f"{where}: {url!r} is not http://HOST:PORT, as in http://10.0.0.1:7411")
