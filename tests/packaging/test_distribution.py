"""Source distribution and wheel: complete, and at work in an environment outside the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from support.limits import limit_s

ROOT = Path(__file__).parents[2]
# Packages of torch_topoopt, and their folders in the checkout.
SHIPPED = {
    "torch_topoopt/launcher/examples/digits.py": "examples/digits.py",
    "torch_topoopt/launcher/": "launcher/",
    "torch_topoopt/models/": "models/",
    "torch_topoopt/": "torch_topoopt/",
}
OF_EXTRAS = ("paramiko", "wandb")  # libraries that a plain installation lacks
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SCRIPT = """
import torch, torch.distributed as dist, torch_topoopt


def build_model():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


def example_batch():
    return torch.zeros(16, 64)


if __name__ == "__main__":
    dist.init_process_group()
    torch.manual_seed(0)
    model = torch_topoopt.parallelize(build_model(), example_batch())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        loss = model(torch.ones(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    where = torch_topoopt.__file__
    if dist.get_rank() == 0:
        print(f"backend {dist.get_backend()} of {where}")
    dist.destroy_process_group()
"""


def _run(*command: str | Path, cwd: Path, idle_s: float = 120) -> str:
    """The output of the command; fails the test with all of it if the command fails."""
    names = ("PYTHONPATH", "VIRTUAL_ENV", "TOPOOPT_PLAN", "TOPOOPT_WIRING", "TOPOOPT_RUN_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=limit_s(idle_s)
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _sources(*folders: str) -> set[str]:
    """Files that git tracks or, where they are new, will track."""
    listing = _run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", *folders, cwd=ROOT
    )
    return {name for name in listing.split() if (ROOT / name).exists()}


def _shipped() -> set[str]:
    """The places of torch_topoopt's files in the distribution."""
    return {
        target + name.removeprefix(folder)
        for target, folder in SHIPPED.items()
        for name in _sources(folder)
        if not (ROOT / name).is_symlink()
    }


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of `make dist`. Objects that this checkout has are not compiled again."""
    folder = tmp_path_factory.mktemp("dist")
    _run(".ci/make-dist", sys.executable, folder, cwd=ROOT, idle_s=600)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment that has the wheel, and what it needs by links."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    (site,) = folder.glob("venv/lib/*/site-packages")
    others = folder / "others"
    others.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        extra = path.name.startswith(OF_EXTRAS)
        if "topoopt" not in path.name and path.suffix != ".pth" and not extra:
            (others / path.name).symlink_to(path)
    (site / "others.pth").write_text(f"{others}\n")
    # Without --no-deps, so that pip has to find all that the wheel depends on.
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "install",
    ]
    _run(*pip, "--quiet", "--no-index", wheel, cwd=folder)
    return python.parent


def test_the_source_distribution_holds_every_source(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        metadata = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert metadata is not None
        requirements = metadata.read().decode()
    sources = _sources("csrc", "setup.py", "pyproject.toml") | _shipped()
    assert sources - names == set()
    assert {name for name in names if name.endswith((".so", ".o", "_build_info.json"))} == set()
    build_system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    (torch_range,) = (r for r in build_system["requires"] if r.startswith("torch"))
    bounds = set(torch_range.removeprefix("torch").split(","))
    (required,) = re.findall(r"^Requires-Dist: torch([<>=].*)$", requirements, re.MULTILINE)
    assert set(required.split(",")) == bounds, "source needs no certain torch"


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = {f"torch_topoopt/{name}{suffix}" for name in ("_core", "_backend")}
    built |= {"torch_topoopt/_build_info.json", "torch_topoopt/lib/libnccl-net-topoopt.so"}
    assert {name for name in names if ".dist-info/" not in name} == _shipped() | built


def test_the_wheel_depends_on_the_torch_it_was_built_with(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = json.loads(archive.read("torch_topoopt/_build_info.json"))
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt"))
        entry_points = archive.read(name).decode()
    assert "[torch.backends]\ntopoopt = " in entry_points
    assert "[torch.distributed.backends]\ntopoopt = " in entry_points
    series = ".".join(info["torch"].split(".")[:2])
    required = re.findall(r"^Requires-Dist: torch([<>=].*)$", metadata, re.MULTILINE)
    assert required == [f"=={series}.*"]
    extras = re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE)
    known = {"dev", "docs", "models", "ocs", "ray", "tensorboard", "viz", "wandb"}
    assert known <= set(extras)


def test_every_module_of_the_wheel_can_be_imported(installed: Path, tmp_path: Path) -> None:
    script = """
import importlib, pkgutil, torch_topoopt
names = [m.name for m in pkgutil.walk_packages(torch_topoopt.__path__, "torch_topoopt.")]
for name in names:
    if not name.endswith(("__main__", "ray_train")) and "wandb" not in name:
        importlib.import_module(name)
assert "torch_topoopt.parallel.api" in names and "torch_topoopt.launcher.run.run" in names
print(torch_topoopt.__file__)
"""
    where = _run(installed / "python", "-c", script, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_a_script_trains_and_is_reported_on_outside_of_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    topoopt = installed / "topoopt"
    options = ("--servers", "2", "--bandwidth", "1Gbps", "--strategy-space", "full")
    printed = _run(topoopt, "run", *options, "--run-dir", "here", "train.py", cwd=tmp_path)
    site = re.search(r"backend topoopt of (\S+)", printed)
    assert site, printed
    assert Path(site[1]).is_relative_to(installed.parent)
    page = tmp_path / "here" / "report.html"
    written = page.read_text()
    page.unlink()
    _run(topoopt, "report", "here", cwd=tmp_path)
    for text in (written, page.read_text()):
        assert "Content-Security-Policy" in text
        assert "All links" in text or "Network" in text


def test_the_demo_trains_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    printed = _run(installed / "topoopt", "demo", cwd=tmp_path)
    reached = re.search(r"^test accuracy .* reached after .*$", printed, re.MULTILINE)
    assert reached, printed
    (page,) = tmp_path.glob("runs/*/report.html")
    assert printed.splitlines()[-1].endswith(str(page.relative_to(tmp_path)))


def test_a_shipped_model_is_planned_by_its_name(installed: Path, tmp_path: Path) -> None:
    options = ("--servers", "4", "--degree", "2", "--bandwidth", "1Gbps", "-o", "plan.json")
    _run(installed / "topoopt", "plan", "vgg:tiny", *options, cwd=tmp_path)
    assert (tmp_path / "plan.json").exists()


def test_the_wheel_names_the_versions_it_was_built_with(installed: Path, tmp_path: Path) -> None:
    printed = _run(installed / "topoopt", "--version", cwd=tmp_path)
    assert printed == _run(installed / "python", "-m", "torch_topoopt", "-V", cwd=tmp_path)
    assert re.search(r"^build   with torch \d+\.\d+\.\d+", printed, re.MULTILINE), printed


def test_types_are_known_to_a_type_checker(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text("import torch_topoopt\n\nx: int = torch_topoopt.stats()\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", installed / "python", "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=limit_s(60),
    )
    assert 'expression has type "dict[str, list[dict[str, Any]]]"' in done.stdout, done.stdout


def test_wheels_for_others_leave_out_what_torch_brings() -> None:
    """auditwheel would copy torch's libraries into the wheel, which would then be there twice."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    excluded = re.findall(r"--exclude (\S+)", settings["linux"]["repair-wheel-command"])
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("this needs readelf (binutils)")
    needed = set()
    for name in ("_core", "_backend"):
        (library,) = (ROOT / "torch_topoopt").glob(f"{name}.*.so")
        dynamic = _run(readelf, "-d", library, cwd=ROOT)
        needed |= set(re.findall(r"NEEDED.*\[(lib(?:torch|c10)\S*)\]", dynamic))
    assert needed
    assert needed <= set(excluded)
