"""Builds the two extension modules; everything else is in pyproject.toml.

`_core` (planner and simulators) needs no torch at run time and only borrows pybind11's headers from
it. `_backend` (the process group) is linked against libtorch, whose C++ interface changes between
releases, so the version it was built with is recorded for the check at import.
"""

import json
from glob import glob
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

CSRC = str(Path(__file__).parent.resolve() / "csrc")  # ninja compiles in the build folder
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


class Build(BuildExtension):
    def run(self) -> None:
        super().run()
        root = Path(__file__).parent if self.inplace or self.editable_mode else Path(self.build_lib)
        record = root / "torch_topoopt" / "_build_info.json"
        record.write_text(json.dumps({"torch": torch.__version__}) + "\n")


setup(
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
    cmdclass={"build_ext": Build},
)
