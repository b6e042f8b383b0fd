"""Versions of torch: what the build accepts and records; what import says of others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch
from support.limits import limit_s
from support.refusals import named, refused

from torch_topoopt.launcher.main import main
from torch_topoopt.runtime import autoload, versions
from torch_topoopt.runtime.versions import BuildMismatchError, build_info, check_build

ROOT = Path(__file__).parents[2]


def _recorded(monkeypatch: pytest.MonkeyPatch, folder: Path, **info: str) -> None:
    record = folder / "_build_info.json"
    record.write_text(json.dumps(info))
    monkeypatch.setattr(versions, "_RECORD", record)
    versions._read.cache_clear()


def test_the_build_recorded_what_it_was_made_with() -> None:
    info = build_info()
    assert info is not None
    check_build(torch.__version__)
    build_system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert f"torch{info.supported_torch}" in build_system["requires"]


def test_what_is_installed_depends_on_the_torch_that_it_was_built_with() -> None:
    info = build_info()
    assert info is not None
    series = ".".join(info.torch.split(".")[:2])
    # Not that of a source distribution, which may lie in the folder that the tests run in.
    (installed,) = metadata.distributions(
        name="torch-topoopt", path=[sysconfig.get_path("purelib")]
    )
    torch_requirements = [r for r in installed.requires or [] if re.match(r"torch\s*[=<>!~]", r)]
    assert torch_requirements == [f"torch=={series}.*"]


@pytest.mark.parametrize("other", ["2.15.0", "2.15.1", "2.15.0+cpu", "2.15.3+cu132"])
def test_releases_of_one_series_fit(
    other: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _recorded(monkeypatch, tmp_path, torch="2.15.0+cu132", supported_torch=">=2.11,<2.16")
    check_build(other)


@pytest.mark.parametrize("other", ["2.15.0a0+git1234567", "2.15.0.dev20261101", "2.15.0rc1"])
def test_what_is_no_release_fits_itself_alone(
    other: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _recorded(monkeypatch, tmp_path, torch="2.15.0", supported_torch=">=2.11,<2.16")
    with pytest.raises(BuildMismatchError, match="but this is torch " + re.escape(other)):
        check_build(other)
    _recorded(monkeypatch, tmp_path, torch=other, supported_torch=">=2.11,<2.16")
    check_build(other)


def test_another_supported_torch_asks_for_a_new_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _recorded(monkeypatch, tmp_path, torch="2.15.0+cu132", supported_torch=">=2.11,<2.16")
    with pytest.raises(BuildMismatchError) as raised:
        check_build("2.13.0")
    assert str(raised.value) == (
        "torch_topoopt's C++ backend was built with torch 2.15.0+cu132, but this is torch 2.13.0; "
        "rebuild it with: pip install --no-build-isolation -e ."
    )


@pytest.mark.parametrize("other", ["2.10.1+cpu", "2.16.0", "3.0.0"])
def test_the_error_of_an_unsupported_torch_names_the_supported_ones(
    other: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _recorded(monkeypatch, tmp_path, torch="2.15.0+cu132", supported_torch=">=2.11,<2.16")
    with pytest.raises(BuildMismatchError) as raised:
        check_build(other)
    assert str(raised.value) == (
        "torch_topoopt's C++ backend was built with torch 2.15.0+cu132, and this is torch "
        f"{other}, which is not supported; install torch 2.15 (supported: 2.11 to 2.15)"
    )


def test_importing_torch_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    with pytest.warns(UserWarning, match=r"this is torch 2\.10\.0, which is not supp") as caught:
        autoload.register()
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)


def test_nothing_of_ours_is_imported_with_a_torch_that_does_not_fit() -> None:
    """The backend's imports may not even exist there."""
    script = """
import sys, warnings, torch
torch.__version__ = "2.10.0"
for name in [name for name in sys.modules if name.startswith("torch_topoopt")]:
    del sys.modules[name]
from torch_topoopt.runtime import autoload
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    autoload.register()
assert len(caught) == 1, caught
assert "torch_topoopt.runtime.backend" not in sys.modules
"""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def test_a_group_says_so_as_well() -> None:
    script = """
import torch
torch.__version__ = "2.10.0"
import warnings
warnings.simplefilter("ignore")
from torch_topoopt.runtime import autoload
autoload.register()
import torch.distributed as dist
store = dist.HashStore()
try:
    dist.init_process_group("topoopt", store=store, rank=0, world_size=1)
except ImportError as error:
    print(error)
"""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        env=environment,
    )
    assert "and this is torch 2.10.0, which is not supported" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1


def test_run_says_so_before_anything_is_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(versions.metadata, "version", lambda _: "2.10.0")
    (tmp_path / "train.py").write_text("raise SystemExit('never started')")
    assert main(["run", "--servers", "2", "--bandwidth", "1Gbps", "train.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("topoopt: error: torch_topoopt's C++ backend was built with torch ")
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def _pip_wheel(torch_module: str, folder: Path) -> str:
    """The output of pip when it shall build here with a torch of `torch_module` alone."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(torch_module)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel"]
    command += ["--no-build-isolation", "--no-deps", "--no-index", "-w", str(folder / "out"), "."]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s(60), env=environment
    )
    assert done.returncode != 0
    assert list(folder.glob("out/*")) == []
    return done.stdout + done.stderr


@pytest.mark.parametrize("version", ["2.10.0", "2.16.0+cu140"])
def test_the_build_refuses_an_unsupported_torch_in_one_line(version: str, tmp_path: Path) -> None:
    printed = _pip_wheel(f"__version__ = {version!r}", tmp_path)
    assert "[1 lines of output]" in printed
    assert named(printed, "PyTorch 2.11 to 2.15", version, "--no-build-isolation")


def test_the_build_names_what_is_missing_without_torch(tmp_path: Path) -> None:
    printed = _pip_wheel("raise ImportError('no torch here')", tmp_path)
    assert "[1 lines of output]" in printed
    assert named(printed, "PyTorch 2.11 to 2.15", "no torch here")


def test_the_package_is_the_command_topoopt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    info = build_info()
    assert info is not None
    printed = []
    for option in ("--version", "-V"):
        assert main([option]) == 0
        printed.append(capsys.readouterr().out)
    done = subprocess.run(
        [sys.executable, "-m", "torch_topoopt", "-V"],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=True,
    )
    assert printed == [done.stdout] * 2
    first, torch_line, python, build = done.stdout.splitlines()
    assert first == f"topoopt {metadata.version('torch-topoopt')}"
    assert torch_line.split() == ["torch", metadata.version("torch")]
    assert python.startswith("Python  " + ".".join(map(str, sys.version_info[:3])))
    tls = f"OpenSSL {info.openssl}" if info.openssl else "no OpenSSL (needed to encrypt links)"
    assert build == f"build   with torch {info.torch}, {tls}, {info.compiler}, {info.flags}"


def test_versions_are_printed_where_nothing_was_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(versions, "_RECORD", tmp_path / "_build_info.json")
    assert versions.versions_text().splitlines()[3].startswith("build   none; make one with: pip ")
    with refused(BuildMismatchError, "pip install"):
        check_build("2.15.0")


def test_the_backend_may_be_imported_before_torch() -> None:
    """Then the entry point runs while the module that registers the backend is still half made."""
    script = """
import torch_topoopt.runtime.backend
import torch.distributed as dist
assert hasattr(dist.Backend, "TOPOOPT")
dist.init_process_group("topoopt", store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
    )
    assert done.returncode == 0, done.stderr
