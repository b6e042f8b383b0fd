"""The shipped figures of the A100 are those of the fit, and agree with what was measured."""

from __future__ import annotations

import statistics

import pytest
from cost_calibration import error, fit, left_out, samples_by_class

from torch_topoopt.search.accelerators import FITTED, accelerator

SAMPLES = samples_by_class()


@pytest.mark.parametrize(
    ("name", "median", "worst"),
    [
        ("dense", 0.05, 0.6),
        ("convolution", 0.1, 0.4),
        ("attention", 0.01, 0.01),
        ("lookup", 0.01, 0.7),
        ("concatenation", 0.07, 0.1),
        ("elementwise", 0.4, 0.7),
    ],
)
def test_errors_stay_as_small_as_they_are(name: str, median: float, worst: float) -> None:
    errors = [abs(error(accelerator("a100"), sample)) for sample in SAMPLES[name]]
    assert statistics.median(errors) <= median
    assert max(errors) <= worst


@pytest.mark.parametrize("name", ["dense", "lookup", "convolution"])
def test_the_shipped_figures_are_the_fitted_ones(name: str) -> None:
    for shipped, fitted in zip(FITTED[name], fit(name, SAMPLES[name]), strict=True):
        assert shipped == pytest.approx(fitted, rel=0.02)


def test_a_dense_layer_is_predicted_by_the_others() -> None:
    assert statistics.median(map(abs, left_out("dense", SAMPLES["dense"][:24]))) < 0.1
