"""Facts of a script before it is started, without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.launcher import script_syntax
from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Read = Callable[[str], script_syntax.ScriptSyntax]

GUARD = "if __name__ == '__main__':\n    main()\n"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_read(text: str) -> script_syntax.ScriptSyntax:
        (tmp_path / "train.py").write_text(text)
        return script_syntax.read(str(tmp_path / "train.py"))

    return write_and_read


@pytest.mark.parametrize(
    ("text", "builds"),
    [
        ("def build_model(): pass", True),
        ("def build_model(width=4, *, depth=2): pass", True),
        ("from model import build_model", True),
        ("from model import make as build_model", True),
        ("build_model = Net", True),
        ("try:\n    pass\nfinally:\n    def build_model(): pass", True),
        ("def build_model(config): pass", False),
        ("def build_model(*, config): pass", False),
        ("from model import build_model as make", False),
        ("class Trainer:\n    def build_model(self): pass", False),
        ("# def build_model(): pass", False),
    ],
)
def test_a_build_model_that_can_be_called_is_found(read: Read, text: str, builds: bool) -> None:
    assert read(text).builds_model is builds


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '4'", {"OMP_NUM_THREADS"}),
        ("os.environ.setdefault('PYTORCH_ALLOC_CONF', 'x')", {"PYTORCH_ALLOC_CONF"}),
        (
            "os.environ.update({'TORCH_LOGS': '', 'MKL_NUM_THREADS': '1'})",
            {"TORCH_LOGS", "MKL_NUM_THREADS"},
        ),
        ("os.putenv('TORCHINDUCTOR_CACHE_DIR', '/tmp')", {"TORCHINDUCTOR_CACHE_DIR"}),
        ("os.environ['TORCHELASTIC_RUN_ID'], os.environ['RANK']", set()),
        ("print('OMP_NUM_THREADS is', 'torch_', 'NCCL_DEBUG')", set()),
    ],
)
def test_variables_that_torch_reads_at_its_import_are_found(
    read: Read, text: str, names: set[str]
) -> None:
    assert read(f"import os\n{text}").import_variables == names


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        (GUARD, True),
        ("if '__main__' == __name__:\n    main()\n", True),
        ("main()", False),
        ("def main():\n    if __name__ == '__main__':\n        pass\n", False),
    ],
)
def test_the_guard_is_found_where_it_guards_the_module(
    read: Read, text: str, guarded: bool
) -> None:
    assert read(text).guarded is guarded


def test_nothing_of_the_script_is_executed(read: Read) -> None:
    assert read("raise SystemExit\n" + GUARD).guarded


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (b"x = 1\nif x\n", ("train.py", "line 2")),
        (b"\x00\x01", ("train.py",)),
        (b"# \xff\xfe\n", ("train.py",)),
    ],
)
def test_what_is_no_python_is_said_in_one_line(
    tmp_path: Path, data: bytes, tokens: tuple[object, ...]
) -> None:
    (tmp_path / "train.py").write_bytes(data)
    with refused(InputError, *tokens) as error:
        script_syntax.read(str(tmp_path / "train.py"))
    assert "\n" not in str(error.value)


def test_predictions_are_of_a_script_whose_model_it_is(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").touch()
    (tmp_path / "other.py").touch()
    syntax = read("import nets\nfrom torch_topoopt.models import vgg\n")
    of_script = ["train.py", "train.py:make", "nets.py:make", "vgg:tiny", "train.json"]
    others = ["other.py:make", "bert:tiny", "bert.json"]
    for model in of_script:
        assert script_syntax.is_of_script(model, "train.py", syntax), model
    for model in others:
        assert not script_syntax.is_of_script(model, "train.py", syntax), model
    assert not script_syntax.is_of_script("vgg:tiny", "package.train", None)
