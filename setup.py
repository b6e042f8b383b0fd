"""Builds the two extension modules and the plugin for NCCL, finds the packages and says what they
depend on.

`_core` (planner and simulators) needs no torch at run time and only borrows pybind11's headers from
it. `_backend` (the process group) is linked against libtorch, whose C++ interface changes between
releases: what is built with torch X.Y depends on torch X.Y, and is refused at import by any other.

TOPOOPT_SYSROOT names a folder with Debian's Python and a torch for another processor, of the same
versions as here, to build for it (`.ci/make-dist-aarch64`).
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent.resolve()

# An older torch_topoopt that is installed here may not load any more; building needs no backend.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
sys.path.insert(0, str(ROOT / "csrc"))  # pip does not look here
import objects  # noqa: E402


def supported_torch() -> str:
    """The versions of torch that pyproject.toml allows for the build, such as ">=2.11,<2.16"."""
    build_system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    for requirement in build_system["requires"]:
        if requirement.startswith("torch>="):
            return requirement.removeprefix("torch")
    raise SystemExit("torch_topoopt: pyproject.toml: build-system.requires: torch>=... is missing")


def release(version: str) -> tuple[int, int]:
    """(2, 15) of "2.15.0+cu132"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def torch_to_build_with() -> str:
    """The version of the torch that is imported here; one line and the end if it does not fit."""
    first, end = map(release, SUPPORTED_TORCH.split(","))
    wanted = f"PyTorch {first[0]}.{first[1]} to {end[0]}.{end[1] - 1}"
    try:
        import torch
    except ImportError as error:
        raise SystemExit(
            f"torch_topoopt: building needs {wanted}, and no torch can be imported here ({error}); "
            "install one of these first, or leave out --no-build-isolation"
        ) from None
    if not first <= release(torch.__version__) < end:
        raise SystemExit(
            f"torch_topoopt: building needs {wanted}, but here is torch {torch.__version__}; "
            "install one of these first, or leave out --no-build-isolation"
        )
    return torch.__version__ if SYSROOT is None else torch_of_sysroot(torch.__version__)


def torch_of_sysroot(here: str) -> str:
    """The version of the torch in SYSROOT; one line and the end if it is not the release `here`."""
    path = SYSROOT / PACKAGES / "torch" / "version.py"
    try:
        (version,) = re.findall(r"^__version__ = '(.+)'$", path.read_text(), re.MULTILINE)
    except (OSError, ValueError) as error:
        raise SystemExit(f"torch_topoopt: TOPOOPT_SYSROOT: {path}: {error}") from None
    if release(version) != release(here):
        raise SystemExit(
            f"torch_topoopt: TOPOOPT_SYSROOT: {path}: torch {version} is not of the release of "
            f"torch {here}, which builds"
        )
    return version


def of_target(paths: list[str]) -> list[str]:
    """Folders of the torch here, in the one to build with."""
    if SYSROOT is None:
        return paths
    (here,) = importlib.util.find_spec("torch").submodule_search_locations
    return [path.replace(here, str(SYSROOT / PACKAGES / "torch")) for path in paths]


def python_headers() -> str:
    """The folder of Python's headers."""
    if SYSROOT is None:
        return sysconfig.get_path("include")
    return str(SYSROOT / "usr/include/python{}.{}".format(*sys.version_info))


SYSROOT = Path(os.environ["TOPOOPT_SYSROOT"]) if os.environ.get("TOPOOPT_SYSROOT") else None
PACKAGES = "usr/lib/python3/dist-packages"  # where Debian's Python looks
SUPPORTED_TORCH = supported_torch()
TORCH = torch_to_build_with()

# This import is only known to work with a torch that fits.
from torch.utils.cpp_extension import include_paths, library_paths  # noqa: E402

HEADERS = of_target(include_paths())
DEPENDENCIES = [  # beside torch
    "numpy>=2",
    "networkx>=3.4",
    "scipy>=1.15",
    "scikit-learn>=1.6",  # the digits of `topoopt demo`
    "rich>=14",
    "jinja2>=3.1",
    "matplotlib>=3.10",
    "pyyaml>=6",
    "pyroute2>=0.9.7,<0.10",
    "httpx>=0.27",
    "h11>=0.14",
    "shtab>=1.8",
]


class Build(build_ext):
    """Compiles with csrc/objects.py, links, and records in _build_info.json what with.

    The record is for the check at import, and for --version.
    """

    def finalize_options(self) -> None:
        # A folder that is kept: an editable install would compile into one that is removed, and a
        # wheel or a build in place after it would compile everything again.
        if self.build_temp is None:
            tag = sys.implementation.cache_tag
            self.build_temp = f"build/objects{objects.FOREIGN}-{tag}-torch{TORCH}"
        super().finalize_options()

    def build_extensions(self) -> None:
        try:
            for extension in self.extensions:
                extension.extra_objects = [str(path) for path in self._objects(extension)]
                extension.depends = extension.extra_objects  # links again when one is newer
                if extension.name.endswith("._backend") and objects.tls_version():
                    extension.libraries.extend(objects.TLS_LIBRARIES)
        except objects.CompileError as error:
            raise SystemExit(f"torch_topoopt: {error}") from None
        super().build_extensions()

    def _objects(self, extension: Extension) -> list[Path]:
        """Compiles what an extension is made of; its object files."""
        module = extension.name.rpartition(".")[2]
        includes = [*extension.include_dirs, python_headers()]
        unit = objects.Unit(
            objects.bindings(module),
            objects.HEADERS[module],
            objects.OPTIMISATION[module],
            (f"-DTORCH_EXTENSION_NAME={module}", *(f"-isystem{path}" for path in includes)),
        )
        folder = Path(self.build_temp).resolve() / module
        return [*objects.compile_plain(module), *objects.compile_unit(folder, unit)]

    def run(self) -> None:
        super().run()
        root = ROOT if self.inplace or self.editable_mode else Path(self.build_lib)
        info = {
            "torch": TORCH,
            "supported_torch": SUPPORTED_TORCH,
            "compiler": self._compiler(),
            "flags": " ".join(objects.code_flags()),
            "openssl": objects.tls_version(),
            "sources": objects.digest("common", "plan", "transport", "collectives", "backend"),
        }
        try:
            objects.link_nccl_net(root / "torch_topoopt" / "lib" / "libnccl-net-topoopt.so")
        except objects.CompileError as error:
            raise SystemExit(f"torch_topoopt: {error}") from None
        record = root / "torch_topoopt" / "_build_info.json"
        record.write_text(json.dumps(info) + "\n")

    def _compiler(self) -> str:
        """The first line that the compiler says of itself."""
        command = [*objects.compiler(), "--version"]
        return subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[0]


class SourceDistribution(sdist):
    """Its builds depend on one version of torch; the source itself on no certain one."""

    def run(self) -> None:
        requirements = [f"torch{SUPPORTED_TORCH}", *DEPENDENCIES]
        self.distribution.install_requires = requirements
        self.distribution.metadata.install_requires = requirements
        super().run()


setup(
    packages=find_packages(include=["torch_topoopt*"]),  # launcher and models are links there
    install_requires=["torch=={}.{}.*".format(*release(TORCH)), *DEPENDENCIES],
    ext_modules=[
        Extension("torch_topoopt._core", [], include_dirs=HEADERS, language="c++"),
        Extension(
            "torch_topoopt._backend",
            [],
            include_dirs=HEADERS,
            library_dirs=of_target(library_paths()),
            libraries=["c10", "torch", "torch_cpu", "torch_python"],
            language="c++",
        ),
    ],
    cmdclass={"build_ext": Build, "sdist": SourceDistribution},
)
