"""The workloads are the networks that List 1 and their publications describe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.refusals import refused

from torch_topoopt.models import MODELS
from torch_topoopt.profile.profiling import profile

EVERY_SIZE = [  # "paper" is another name for one of them
    (name, size) for name in MODELS for size in MODELS[name].SIZES if size != "paper"
]


def parameters(name: str, size: str = "paper") -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in MODELS[name].build(size).parameters())


def call(model: Any, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


@pytest.mark.parametrize(("name", "size"), EVERY_SIZE)
def test_every_size_takes_its_example_batch(name: str, size: str) -> None:
    module = MODELS[name]
    with torch.device("meta"):
        model = module.build(size)
        output = call(model, module.example_batch(3, size=size))
    logits = output[0] if isinstance(output, tuple) else output
    assert logits.shape[0] == 3


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_a_workload_is_counted_and_trained(name: str) -> None:
    module = MODELS[name]
    graph = profile(lambda: module.build("tiny"), module.example_batch(size="tiny"), name=name)
    assert graph.parameter_bytes == graph.parameter_gradient_bytes == 4 * parameters(name, "tiny")


@pytest.mark.parametrize("name", MODELS)
def test_a_tiny_workload_learns_on_real_tensors(name: str) -> None:
    module = MODELS[name]
    torch.manual_seed(0)
    model = module.build("tiny")
    batch = module.example_batch(size="tiny")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    output = call(model, batch)
    logits = output[0] if isinstance(output, tuple) else output
    (logits - 1).square().mean().backward()
    optimizer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert torch.isfinite(logits).all()
    assert any(moved)


@pytest.mark.parametrize("name", MODELS)
def test_an_unknown_size_is_refused_with_the_known_ones(name: str) -> None:
    for function in (MODELS[name].build, lambda size: MODELS[name].example_batch(size=size)):
        with refused(ValueError, "huge"):
            function("huge")


def test_the_catalogue_knows_its_names_only() -> None:
    today = ["cosmoflow", "gpt", "llama", "mixtral", "moe", "qwen3-moe", "resnet152"]
    assert list(MODELS) == sorted(["bert", "candle", "dlrm", "ncf", "resnet50", "vgg", *today])
    assert len(MODELS) == 13
    assert "alexnet" not in MODELS
    with pytest.raises(KeyError):
        MODELS["alexnet"]


def test_vgg16_and_resnet50_have_their_published_parameters() -> None:
    assert parameters("vgg") == 138_357_544
    assert parameters("vgg", "vgg19") == 143_667_240
    assert parameters("resnet50") == 25_557_032


def test_the_models_of_the_hammingmesh_paper_have_its_parameters() -> None:
    """Section V-B: 60.2 M and 8.9 M. The layers of CosmoFlow are those of MLPerf HPC."""
    assert parameters("resnet152") == 60_192_808
    convolutions = [27 * 4 * 32 + 32, *(27 * 2 * f * f + 2 * f for f in (32, 64, 128, 256))]
    assert parameters("cosmoflow") == sum(convolutions) + _dense(4**3 * 512, 128, 64, 4)
    assert parameters("cosmoflow") == pytest.approx(8.9e6, rel=2e-3)


def test_released_sizes_have_the_gradients_of_the_released_simulations() -> None:
    """Bytes that an AllReduce of data parallelism carries there."""
    assert MODELS["vgg"].SIZES["released"].side ** 2 * 512 == 61952
    assert 4 * parameters("vgg", "released") == pytest.approx(1.157e9, rel=1e-3)
    attention, dense = 4 * 1024**2, 1024**2 + 1024
    expected = 12 * (3 * attention + 4 * dense) + 1024 + 1
    assert parameters("bert", "released") == expected
    assert 4 * expected == pytest.approx(806e6, rel=1e-3)


def test_bert_blocks_have_their_published_parameters() -> None:
    with torch.device("meta"):
        encoder = MODELS["bert"].build("paper").encoder
    hidden = 1024
    attention = 4 * (hidden * hidden + hidden)
    feed_forward = 8 * hidden * hidden + 5 * hidden
    norms = 4 * hidden
    expected = 12 * (attention + feed_forward + norms)
    assert sum(p.numel() for p in encoder.parameters()) == expected


def _dense(inputs: int, *outputs: int) -> int:
    total = 0
    for width in outputs:
        total += inputs * width + width
        inputs = width
    return total


def test_dlrm_candle_and_ncf_have_the_layers_of_list_1() -> None:
    assert parameters("dlrm") == (
        64 * 10**7 * 128 + _dense(2048, *[2048] * 8) + _dense(2048 + 64 * 128, *[4096] * 16, 1)
    )
    widths = (942, 5270, 2048, 5270, 2048)
    assert parameters("candle") == (
        sum(_dense(width, *[16384] * 16) for width in widths)
        + _dense(5 * 16384 + 2, *[16384] * 8, 1)
    )
    assert parameters("ncf") == (
        64 * 10**6 * (64 + 128) + _dense(64 * 128, *[4096] * 8) + _dense(32 * 64 + 4096, 1)
    )


# List 1, line by line: batch per accelerator, then the fields that it names.
LIST_1: dict[str, dict[str, dict[str, Any]]] = {
    "vgg": {"5.3": {"batch_size": 64}, "5.6": {"batch_size": 64}, "6": {"batch_size": 32}},
    "resnet50": {"5.3": {"batch_size": 128}, "6": {"batch_size": 20}},
    "bert": {
        "5.3": {"batch_size": 16, "blocks": 12, "hidden": 1024, "sequence": 64, "heads": 16},
        "5.6": {"batch_size": 16, "blocks": 6, "hidden": 768, "sequence": 256, "heads": 6},
        "6": {"batch_size": 2, "blocks": 6, "hidden": 1024, "sequence": 1024, "heads": 16},
    },
    "dlrm": {
        "5.3": {"batch_size": 128, "dense": 8, "dense_width": 2048, "top": 16, "top_width": 4096}
        | {"width": 128, "rows": 10**7, "tables": 64},
        "5.4": {"tables": 128},
        "5.6": {"batch_size": 256, "dense": 8, "dense_width": 1024, "top": 16, "top_width": 2048}
        | {"width": 256, "rows": 10**7, "tables": 16},
        "6": {"batch_size": 64, "dense": 4, "dense_width": 1024, "top": 8, "top_width": 2048}
        | {"width": 32768, "rows": 10**5, "tables": 12},
    },
    "candle": {
        "5.3": {"batch_size": 256, "dense": 8, "dense_width": 16384}
        | {"tower": 16, "tower_width": 16384},
        "5.6": {"batch_size": 256, "dense": 8, "dense_width": 4096}
        | {"tower": 16, "tower_width": 4096},
        "6": {"batch_size": 10, "dense": 4, "dense_width": 4096, "tower": 8, "tower_width": 4096},
    },
    "ncf": {
        "5.3": {"batch_size": 128, "dense": 8, "dense_width": 4096, "tables": 32, "rows": 10**6}
        | {"mf_width": 64, "mlp_width": 128},
    },
}


@pytest.mark.parametrize("name", LIST_1)
def test_sizes_are_those_of_list_1(name: str) -> None:
    sizes = MODELS[name].SIZES
    assert {size for size in sizes if size.startswith("paper-") and not size.endswith("dot")} == {
        f"paper-{section}" for section in LIST_1[name]
    }
    for section, wanted in LIST_1[name].items():
        size = vars(sizes[f"paper-{section}"])
        assert {field: size[field] for field in wanted} == wanted
    assert sizes["paper"] is sizes["paper-5.3"]


def test_pairwise_interaction_is_the_product_of_every_pair_once() -> None:
    pairs = MODELS["dlrm"].PairProducts(3)
    a, b, c = torch.eye(3) * torch.tensor([2.0, 3.0, 5.0]) + torch.ones(3, 3)
    products = pairs(torch.stack([a, b, c])[None])
    assert sorted(products[0].tolist()) == sorted(float(x @ y) for x, y in ((a, b), (a, c), (b, c)))
    width = 128
    assert parameters("dlrm", "paper-5.3-dot") == (
        64 * 10**7 * width
        + _dense(2048, *[2048] * 7, width)
        + _dense(width + 65 * 64 // 2, *[4096] * 16, 1)
    )


def test_the_digits_network_is_small_enough_for_a_laptop() -> None:
    assert 500_000 <= parameters("vgg", "digits") <= 1_000_000
