"""Builds the two extension modules, finds the packages and says what they depend on.

`_core` (planner and simulators) needs no torch at run time and only borrows pybind11's headers from
it. `_backend` (the process group) is linked against libtorch, whose C++ interface changes between
releases: what is built with torch X.Y depends on torch X.Y, and is refused at import by any other.
"""

import json
import re
import subprocess
import sys
import tomllib
from glob import glob
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent.resolve()


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
    return torch.__version__


SUPPORTED_TORCH = supported_torch()
TORCH = torch_to_build_with()

# This import is only known to work with a torch that fits.
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths  # noqa: E402

DEPENDENCIES = [  # beside torch
    "numpy>=2",
    "networkx>=3.4",
    "scipy>=1.15",
    "rich>=14",
    "matplotlib>=3.10",
    "pyyaml>=6",
    "paramiko>=3.4",
    "pyroute2>=0.9.7,<0.10",
    "httpx>=0.27",
    "ncclient>=0.7,<0.8",
    "lxml>=5",
    "shtab>=1.8",
]
PACKAGE_DIR = {
    "torch_topoopt": "torch_topoopt",
    "torch_topoopt.launcher": "launcher",
    "torch_topoopt.models": "models",
}
CSRC = str(ROOT / "csrc")  # ninja compiles in the build folder
FLAGS = [
    "-std=c++20",
    "-O3",
    "-g1",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # the same plan on every processor; ARM compilers fuse otherwise
]


def sources(*folders: str) -> list[str]:
    return sorted(path for folder in folders for path in glob(f"csrc/{folder}/*.cc"))


def packages() -> list[str]:
    """Every folder below PACKAGE_DIR that has an __init__.py, as the package that it becomes."""
    return [
        name
        for root, folder in PACKAGE_DIR.items()
        for name in (root, *(f"{root}.{inner}" for inner in find_packages(folder)))
    ]


class Build(BuildExtension):
    """Builds, and records in _build_info.json what with: for the check at import, and --version."""

    def finalize_options(self) -> None:
        # A folder that is kept: an editable install would compile into one that is removed, and a
        # wheel or a build in place after it would compile everything again.
        if self.build_temp is None:
            self.build_temp = f"build/objects-{sys.implementation.cache_tag}-torch{TORCH}"
        super().finalize_options()

    def run(self) -> None:
        super().run()
        root = ROOT if self.inplace or self.editable_mode else Path(self.build_lib)
        flags = sorted({flag for extension in self.extensions for flag in _flags(extension)})
        info = {
            "torch": TORCH,
            "supported_torch": SUPPORTED_TORCH,
            "compiler": self._compiler(),
            "flags": " ".join(flags),
        }
        record = root / "torch_topoopt" / "_build_info.json"
        record.write_text(json.dumps(info) + "\n")

    def _compiler(self) -> str:
        """The first line that the compiler says of itself."""
        command = [*self.compiler.compiler_cxx, "--version"]  # it may begin with ccache
        return subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[0]


def _flags(extension: Extension) -> list[str]:
    """The flags that decide what code is made, without those about warnings and names."""
    return [f for f in extension.extra_compile_args if re.match(r"-(O|g|std|f|m)", f)]


class SourceDistribution(sdist):
    """What is built of it depends on one version of torch; the source itself on no certain one."""

    def run(self) -> None:
        requirements = [f"torch{SUPPORTED_TORCH}", *DEPENDENCIES]
        self.distribution.install_requires = requirements
        self.distribution.metadata.install_requires = requirements
        super().run()


setup(
    packages=packages(),
    package_dir=PACKAGE_DIR,
    install_requires=["torch=={}.{}.*".format(*release(TORCH)), *DEPENDENCIES],
    ext_modules=[
        Extension(
            "torch_topoopt._core",
            [
                "csrc/bind_core.cc",
                "csrc/bind_architectures.cc",
                "csrc/bind_iteration.cc",
                "csrc/bind_sim.cc",
                "csrc/bind_routing.cc",
                "csrc/bind_packet.cc",
                "csrc/bind_topology.cc",
                "csrc/bind_search.cc",
                *sources("common", "sim", "sim/packet", "search", "topology"),
            ],
            include_dirs=[CSRC, *include_paths()],
            extra_compile_args=FLAGS,
            language="c++",
        ),
        CppExtension(
            "torch_topoopt._backend",
            [
                "csrc/bind_backend.cc",
                *sources("common", "plan", "transport", "collectives", "backend"),
            ],
            include_dirs=[CSRC],
            extra_compile_args=FLAGS,
        ),
    ],
    cmdclass={"build_ext": Build, "sdist": SourceDistribution},
)
