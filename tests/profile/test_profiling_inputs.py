"""Models that `topoopt profile` is given by name and by file, and what it cannot profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.refusals import refused
from torch import nn

from torch_topoopt.profile.profiling import ProfileError, load_model, profile

if TYPE_CHECKING:
    from pathlib import Path

FLOAT = 4  # bytes


class Layers(nn.Module):
    """Two layers, the first of them called `stem`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stem(x))


class Broken(nn.Module):
    """Does what its caller says, inside a submodule."""

    def __init__(self, action: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.inner = nn.Module()
        self.inner.forward = action

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(self.fc(x))


REAL = torch.zeros(8)


def _divide_by_zero(x: torch.Tensor) -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda x: x if x.sum() > 0 else -x, "needs the values of tensors"),
        (lambda x: x[x > 0], "needs the values of tensors"),
        (lambda x: x * x.mean().item(), "needs the values of tensors"),
        (lambda x: x + REAL, "real tensor on cpu of shape (8,)"),
        (lambda x: x.view(4, 2, 4), "batch of 8: "),
        (_divide_by_zero, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_traced_is_one_line_that_names_the_module(action: Any, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        profile(lambda: Broken(action), torch.zeros(4, 8), name="x")
    text = str(caught.value)
    assert message in text
    assert "in Module (inner): " in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("model", "batch", "tokens"),
    [
        (lambda: Broken(lambda x: x.argmax(1)), torch.zeros(4, 8), ("reducible", "loss")),
        (lambda: Broken(lambda x: None), torch.zeros(4, 8), ("reducible", "loss")),
        (Layers, {"x": 3}, ("batch", "dimension")),
        (Layers, (), ("batch", "dimension")),
        (Layers, torch.zeros(4, 7), ("stem",)),
        (Layers, (torch.zeros(4, 8), 1), ("TypeError",)),
        (lambda: 3, torch.zeros(4, 8), ("nn.Module", "int")),
        (lambda: nn.Linear(8, -1), torch.zeros(4, 8), ("building the model",)),
        (nn.Sequential(nn.LazyLinear(3)), torch.zeros(4, 8), ("lazy", "parameters")),
    ],
)
def test_what_cannot_be_profiled_is_one_line(
    model: Any, batch: Any, tokens: tuple[object, ...]
) -> None:
    with refused(ProfileError, *tokens) as caught:
        profile(model, batch, name="x")
    assert "\n" not in str(caught.value)


def test_a_wrong_batch_size_is_refused() -> None:
    with refused(ProfileError, "batch_size", 5, 4):
        profile(Layers, torch.zeros(4, 8), name="x", batch_size=5)


def test_lazy_layers_work_when_the_model_is_built_by_a_callable() -> None:
    graph = profile(lambda: nn.Sequential(nn.LazyLinear(3)), torch.zeros(4, 8), name="x")
    assert graph.parameter_bytes == 27 * FLOAT


# Models by name and by file.

SCRIPT = """
import neighbour
import torch

def build_model():
    return torch.nn.Linear(neighbour.WIDTH, 2)

def with_batch():
    return build_model(), torch.zeros(6, 8)

def failing():
    raise OSError("no such weights")

def example_batch(batch_size=16):
    return torch.zeros(batch_size, 8)

def number():
    return 3

if __name__ == "__main__":
    raise SystemExit("the script ran")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 8\n")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize(
    ("function", "batch_size", "name", "samples"),
    [
        ("", None, "train", 16),
        ("", 12, "train", 12),
        (":with_batch", None, "train:with_batch", 6),
        (":with_batch", 12, "train:with_batch", 12),
    ],
)
def test_a_file_is_a_model(
    script: Path, function: str, batch_size: int | None, name: str, samples: int
) -> None:
    build, batch, found = load_model(f"{script}{function}", batch_size=batch_size)
    graph = profile(build, batch, name=found)
    assert (graph.model, graph.batch_size) == (name, samples)
    assert graph.forward_flops == 2 * samples * 8 * 2


@pytest.mark.parametrize(
    ("spec", "batch_size"), [("vgg:tiny", None), ("vgg:tiny", 6), ("candle:tiny", None)]
)
def test_a_name_is_a_model(spec: str, batch_size: int | None) -> None:
    build, batch, name = load_model(spec, batch_size=batch_size)
    graph = profile(build, batch, name=name)
    assert (graph.model, graph.batch_size) == (spec, batch_size or 4)


@pytest.mark.parametrize(
    ("spec", "size", "tokens"),
    [
        (
            "alexnet",
            None,
            ("alexnet", "candle"),
        ),
        ("vgg:huge", None, ("huge", "vgg")),
        ("vgg", "huge", ("huge", "vgg")),
        ("vgg:tiny", "paper", ("contradict",)),
        ("missing.py", None, ("missing.py",)),
        ("{script}:nothing", None, ("nothing",)),
        ("{script}:failing", None, ("OSError", "failing")),
        ("{script}:number", None, ("nn.Module", "int")),
        ("{script}", "tiny", ("shipped",)),
    ],
)
def test_a_wrong_name_is_one_line(
    script: Path, spec: str, size: str | None, tokens: tuple[object, ...]
) -> None:
    with refused(ProfileError, *tokens) as caught:
        load_model(spec.format(script=script), size=size)
    assert "\n" not in str(caught.value)


def test_a_file_that_fails_on_import_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import sys\nsys.exit('needs a cluster')\n")
    with refused(ProfileError, "SystemExit"):
        load_model(str(path))


def test_what_is_no_module_is_said_before_its_batch_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text("def build_model():\n    return [3]\n")
    with refused(ProfileError, "build_model", "nn.Module"):
        load_model(str(path))


def test_the_error_of_a_file_without_a_batch_names_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text("import torch\ndef build_model():\n    return torch.nn.Linear(8, 2)\n")
    with refused(ProfileError, "example_batch"):
        load_model(str(path))
