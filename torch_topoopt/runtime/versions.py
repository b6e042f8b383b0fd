"""The torch version of the C++ backend's build, a check against another one, all versions as text.

The build writes `_build_info.json` (see setup.py). Nothing here imports torch.
"""

from __future__ import annotations

import functools
import json
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from torch_topoopt import __version__

_RECORD = Path(__file__).parent.with_name("_build_info.json")
_REBUILD = "pip install --no-build-isolation -e ."


class BuildMismatchError(ImportError):
    """The C++ backend was built with another torch than the imported one."""


@dataclass(frozen=True)
class BuildInfo:
    """The build environment of the C++ extensions."""

    torch: str  # such as "2.15.0+cu132"
    # Versions that the build accepts; defaults are for builds that recorded torch alone.
    supported_torch: str = ">=2.11,<2.16"
    compiler: str = "compiler not recorded"  # else the first line of its --version
    flags: str = "flags not recorded"
    openssl: str = ""  # the release that encrypts links; "": none
    sources: str = ""  # digest of the C++ that all ranks must share: schedules, frames, limits


def build_info() -> BuildInfo | None:
    """The record of the build; None where nothing was built."""
    return _read(_RECORD)


@functools.cache
def _read(record: Path) -> BuildInfo | None:
    try:
        return BuildInfo(**json.loads(record.read_bytes()))
    except FileNotFoundError:
        return None


def check_build(torch_version: str) -> None:
    """Raises BuildMismatchError if the C++ backend does not fit this torch, or was never built.

    All releases of one X.Y.* have the same C++ interface. Any other build (nightly, from source)
    only fits itself.
    """
    info = build_info()
    if info is None:
        raise BuildMismatchError(
            f"torch_topoopt's C++ backend is not built; build it with: {_REBUILD}"
        )
    torch_version = str(torch_version)  # torch.__version__ parses what it is compared with
    if info.torch == torch_version:
        return
    built, here = _release(info.torch), _release(torch_version)
    if built == here and _is_release(info.torch) and _is_release(torch_version):
        return
    first, end = map(_release, info.supported_torch.split(","))
    built_with = f"torch_topoopt's C++ backend was built with torch {info.torch}"
    if first <= here < end:
        raise BuildMismatchError(
            f"{built_with}, but this is torch {torch_version}; rebuild it with: {_REBUILD}"
        )
    raise BuildMismatchError(
        f"{built_with}, and this is torch {torch_version}, which is not supported; "
        f"install torch {built[0]}.{built[1]} (supported: {first[0]}.{first[1]} to "
        f"{end[0]}.{end[1] - 1})"
    )


def check_tls() -> None:
    """Raises BuildMismatchError if this build cannot encrypt links."""
    info = build_info()
    if info is None or not info.openssl:
        raise BuildMismatchError(
            "torch_topoopt was built without OpenSSL; install its headers, 3.0 or newer "
            f"(Debian: apt-get install libssl-dev), and rebuild it with: {_REBUILD}"
        )


def check_installed() -> None:
    """`check_build` for the installed torch, without importing it."""
    check_build(metadata.version("torch"))


def versions_text() -> str:
    """Versions of torch_topoopt, torch, Python and the build, a line each."""
    info = build_info()
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not installed"
    built = (
        f"with torch {info.torch}, {_tls_text(info)}, {info.compiler}, {info.flags}"
        if info is not None
        else f"none; make one with: {_REBUILD}"
    )
    return "\n".join(
        [
            f"topoopt {__version__}",
            f"torch   {torch}",
            f"Python  {platform.python_version()} ({platform.machine()})",
            f"build   {built}",
        ]
    )


def _tls_text(info: BuildInfo) -> str:
    return f"OpenSSL {info.openssl}" if info.openssl else "no OpenSSL (needed to encrypt links)"


def _release(version: str) -> tuple[int, int]:
    """(2, 15) of "2.15.0+cu132" or ">=2.15"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def _is_release(version: str) -> bool:
    return re.fullmatch(r"\d+\.\d+\.\d+(\+(cpu|cu\d+|rocm[\d.]+|xpu))?", version) is not None
