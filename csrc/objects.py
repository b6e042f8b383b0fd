"""Compiles what the two extension modules and the plugin for NCCL are made of, with ninja.

Most of csrc/ needs neither torch nor Python. `python csrc/objects.py` compiles that much, so that
it can be done while torch is being downloaded (the Makefile does); setup.py compiles the rest, and
finds done what is done.

Variables: CXX, CPPFLAGS and CXXFLAGS (added last, so `-O0` or `-g1` there win), MAX_JOBS (compilers
at a time), TOPOOPT_DEBUG=1 (for debuggers: -Og -g), TOPOOPT_BATCH_LINES (0: every file by itself).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CSRC = Path(__file__).parent.resolve()
# "-linux-aarch64", if Python was told to build for another machine than this.
FOREIGN = f"-{platform}" if (platform := os.environ.get("_PYTHON_HOST_PLATFORM")) else ""
PLAIN_FOLDER = CSRC.parent / "build" / f"objects{FOREIGN}"  # of what needs no torch

# The folders of each module that include neither torch nor Python, with their rooms.
PLAIN = {
    "_core": (
        *("allocation", "common", "plan", "route_control", "topology", "search"),
        *("sim/core", "sim/flow", "sim/iteration", "sim/packet"),
    ),
    "_backend": ("common", "plan", "transport", "collectives"),
    "nccl_net": ("common", "plan", "transport", "collectives", "nccl"),
}
FLAGS = [
    "-std=c++20",
    "-fPIC",
    "-DNDEBUG",
    "-fwrapv",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # the same plan on every processor; ARM compilers fuse otherwise
]
# What is compiled against torch's headers, and what of these all its files include.
HEADERS = {"_core": "precompiled/pybind.h", "_backend": "backend/precompiled.h"}
# The one file that uses OpenSSL, where that is installed, and the headers that it needs.
TLS_SOURCE = CSRC / "transport" / "tls" / "session.cc"
TLS_HEADER = CSRC / "transport" / "tls" / "openssl.h"
TLS_LIBRARIES = ("ssl", "crypto")
# Files of one folder are compiled together, up to so many lines: what each would make anew of the
# templates in headers takes the compiler longer than what stands in the files.
BATCH_LINES = 1500
# g++ takes what another file includes for a header, whose classes want no members of local types.
BATCH_BEGIN = """\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif
"""
# Planning, simulating and moving bytes are optimised as far as it goes. The backend only calls
# them, and the bindings of _core only convert, though they are half of all the code that is made.
PLAIN_OPTIMISATION = "-O3"
OPTIMISATION = {"_core": "-O1", "_backend": "-O2"}


class CompileError(Exception):
    """The compiler refused a file, and has said why."""


@dataclass(frozen=True)
class Unit:
    """Files that are compiled with the same flags and the same precompiled header.

    g++ 12 may crash where a header was precompiled with another optimisation.
    """

    sources: tuple[Path, ...]
    header: str  # below csrc/
    optimisation: str
    flags: tuple[str, ...] = ()


def sources(*folders: str) -> tuple[Path, ...]:
    """The C++ files of these folders of csrc/ and of their rooms, folder by folder."""
    found = (path for folder in folders for path in (CSRC / folder).rglob("*.cc"))
    return tuple(sorted(found, key=lambda path: (path.parent, path.name)))


def digest(*folders: str) -> str:
    """Twelve hexadecimal digits that change with any file below `folders` of csrc/."""
    below = (path for folder in folders for path in (CSRC / folder).rglob("*"))
    files = sorted(path for path in below if path.is_file())
    parts = [f"{path.relative_to(CSRC)}\n{path.read_text()}\n" for path in files]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:12]


def bindings(module: str) -> tuple[Path, ...]:
    """The C++ files of a module that need the headers of Python or torch."""
    backend = CSRC / "bind" / "backend.cc"
    if module == "_backend":
        return (backend, *sources("backend"))
    return tuple(path for path in sources("bind") if path != backend)


def compile_plain(module: str | None = None) -> list[Path]:
    """Compiles what needs no torch: that of one module, or all; returns its object files."""
    folders = sorted({folder for group in PLAIN.values() for folder in group})
    unit = Unit(sources(*folders), "precompiled/standard.h", PLAIN_OPTIMISATION)
    made = compile_unit(PLAIN_FOLDER, unit)
    if module is None:
        return made
    wanted = [PLAIN_FOLDER / folder for folder in PLAIN[module]]
    return [path for path in made if any(path.is_relative_to(folder) for folder in wanted)]


def compile_unit(folder: Path, unit: Unit) -> list[Path]:
    """Compiles `unit` into `folder` (what is up to date stays as it is); returns the object files.

    Raises:
        CompileError: a file does not compile, or ninja is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # another build may be at work in this folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        text, objects = _ninja_file(folder, unit)
        (folder / "build.ninja").write_text(text)
        jobs = os.environ.get("MAX_JOBS")
        # ccache takes no file that uses a precompiled header unless it may overlook __TIME__.
        variables = {"CCACHE_SLOPPINESS": "pch_defines,time_macros", **os.environ}
        done = subprocess.run(
            [_ninja(), *(["-j", jobs] if jobs else []), "--quiet"], cwd=folder, env=variables
        )
    if done.returncode != 0:
        raise CompileError(f"compiling failed (in {folder})")
    return objects


def link_nccl_net(target: Path) -> None:
    """Links NCCL's network plugin, which needs neither torch nor Python nor NCCL, at `target`.

    Raises:
        CompileError: it does not compile, or does not link.
    """
    made = compile_plain("nccl_net")
    libraries = [f"-l{name}" for name in TLS_LIBRARIES] if tls_version() else []
    target.parent.mkdir(parents=True, exist_ok=True)
    # NCCL unloads a plugin with its last communicator, but ours goes on relaying for other ranks.
    command = [
        *(
            *compiler(),
            "-shared",
            "-pthread",
            "-Wl,-z,nodelete",
            "-Wl,-z,defs",
            "-Wl,--gc-sections",
        ),
        *("-o", str(target), *map(str, made), *libraries),
    ]
    if subprocess.run(command).returncode != 0:
        raise CompileError(f"linking {target} failed")


def code_flags() -> list[str]:
    """The facts that determine the object code, as far as they are the same for every file."""
    return [flag for flag in FLAGS if flag.startswith(("-std", "-f"))]


@cache
def tls_version() -> str:
    """The release of OpenSSL whose headers are installed, such as "3.0.19"; "" if there is none."""
    probe = [*compiler(), *_environment_flags(), "-x", "c++", "-dM", "-E", str(TLS_HEADER)]
    done = subprocess.run(probe, capture_output=True, text=True)
    found = re.search(r'^#define OPENSSL_VERSION_STR "(.+)"$', done.stdout, re.MULTILINE)
    return found[1] if found is not None and done.returncode == 0 else ""


def compiler() -> list[str]:
    """The command of the C++ compiler, without flags of ours."""
    return shlex.split(os.environ.get("CXX", "c++"))


def _ninja() -> str:
    try:
        import ninja
    except ImportError:
        found = shutil.which("ninja")
    else:
        found = shutil.which("ninja", path=f"{ninja.BIN_DIR}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise CompileError("ninja is not installed; pip install ninja")
    return found


def _batches(sources: tuple[Path, ...]) -> list[list[Path]]:
    """Neighbours of one folder together, except the file with flags of its own."""
    most = _batch_lines()
    batches: list[list[Path]] = []
    left = 0  # lines that the last batch may still have
    for source in sources:
        lines = source.read_text().count("\n")
        joins = lines <= left and source.parent == batches[-1][0].parent and source != TLS_SOURCE
        if joins:
            batches[-1].append(source)
        else:
            batches.append([source])
            left = 0 if source == TLS_SOURCE else most
        left -= lines
    return batches


def _batch_lines() -> int:
    text = os.environ.get("TOPOOPT_BATCH_LINES", str(BATCH_LINES))
    if not text.isdecimal():
        raise CompileError(f"TOPOOPT_BATCH_LINES: {text!r} is not a number of lines, such as 1500")
    return int(text)


def _compiled(folder: Path, batch: list[Path]) -> Path:
    """The file that is compiled for a batch; one below `folder` includes what are several."""
    if len(batch) == 1:
        return batch[0]
    path = (folder / batch[0].relative_to(CSRC)).with_suffix(".batch.cc")
    path.parent.mkdir(parents=True, exist_ok=True)
    includes = "".join(f'#include "{file.relative_to(CSRC)}"\n' for file in batch)
    _write_if_other(path, BATCH_BEGIN + includes)
    return path


def _ninja_file(folder: Path, unit: Unit) -> tuple[str, list[Path]]:
    """The text of the ninja file, and the objects that it makes."""
    debug = os.environ.get("TOPOOPT_DEBUG", "0") not in ("", "0")
    header = folder / unit.header
    header.parent.mkdir(parents=True, exist_ok=True)
    # A compiler that cannot use the compiled form reads this one.
    _write_if_other(header, f'#include "{CSRC / unit.header}"\n')
    flags = [
        *FLAGS,
        f"-I{CSRC}",
        *unit.flags,
        *(["-Og", "-g"] if debug else [unit.optimisation]),
        *_environment_flags(),
    ]
    lines = [
        f"cxx = {_joined([*_ccache(), *compiler()])}",
        f"flags = {_joined(flags)}",
        "rule header",
        "  command = $cxx $flags -MMD -MF $out.d -x c++-header $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in",
        "rule object",
        f"  command = $cxx -include {_joined([str(header)])} -fpch-preprocess $flags"
        " -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in",
        f"build {_path(header)}.gch: header {_path(header)}",
    ]
    objects = []
    for batch in _batches(unit.sources):
        source = _compiled(folder, batch)
        below = source.relative_to(folder if len(batch) > 1 else CSRC)
        made = (folder / below).with_suffix(".o")
        made.parent.mkdir(parents=True, exist_ok=True)
        objects.append(made)
        lines.append(f"build {_path(made)}: object {_path(source)} | {_path(header)}.gch")
        if source == TLS_SOURCE and tls_version():
            lines.append("  flags = $flags -DTOPOOPT_TLS")
    return "\n".join([*lines, ""]), objects


def _ccache() -> list[str]:
    """ccache, if it is installed and not part of CXX already."""
    found = shutil.which("ccache")
    return [found] if found and not any("ccache" in word for word in compiler()) else []


def _environment_flags() -> list[str]:
    names = ("CPPFLAGS", "CXXFLAGS")
    return [flag for name in names for flag in shlex.split(os.environ.get(name, ""))]


def _write_if_other(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _joined(words: list[str]) -> str:
    """As a value in a ninja file: for the shell, with ninja's own escape."""
    return shlex.join(words).replace("$", "$$")


def _path(path: Path) -> str:
    """As a file in a ninja file."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


if __name__ == "__main__":
    try:
        compile_plain()
    except CompileError as error:
        raise SystemExit(f"csrc/objects.py: {error}") from None
