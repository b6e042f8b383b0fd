"""Models of other people's libraries become OpGraphs, with nothing changed in their code.

The libraries are those of the extra `models`; nothing is downloaded but them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.refusals import refused

from torch_topoopt.profile.profiling import ProfileError, profile

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph

NEEDED = "install the extra `models` of torch_topoopt to profile other people's models"


def layers(graph: OpGraph) -> list[tuple[int, str]]:
    return [(len(layer.starts), layer.kind) for layer in graph.layers]


def language_batch(**more: Any) -> dict[str, Any]:
    tokens = torch.zeros(4, 16, dtype=torch.long)
    return {"input_ids": tokens, "labels": tokens, **more}


def test_a_gpt2_of_transformers_with_tied_weights_and_its_own_loss() -> None:
    transformers = pytest.importorskip("transformers", reason=NEEDED)
    config = transformers.GPT2Config(n_layer=5)
    graph = profile(lambda: transformers.GPT2LMHeadModel(config), language_batch(), name="gpt2")
    assert layers(graph) == [(5, "GPT2Block")]
    block = 12 * 768**2 + 13 * 768
    embeddings = (50257 + 1024) * 768
    assert graph.parameter_bytes == 4 * (embeddings + 5 * block + 2 * 768)
    assert graph.parameter_gradient_bytes == graph.parameter_bytes
    tokens = 4 * 16
    matrices = 2 * tokens * (5 * 12 * 768**2 + 50257 * 768)
    attention = 5 * 4 * 4 * 16 * 16 * 768
    assert graph.forward_flops == matrices + attention
    assert graph.backward_flops == pytest.approx(2 * graph.forward_flops, rel=0.02)
    sums = [operator for operator in graph.operators if operator.name.endswith("add")]
    columns = {split.max_degree for o in sums for split in o.splits if split.dimension == "columns"}
    assert columns <= {768}, "its Conv1D is a linear layer: the features of what it makes are last"
    attention = "transformer.h.0.attn"
    assert splits(graph, f"{attention}.c_attn") == {"columns": 768, "rows": 768, "attribute": 16}
    assert splits(graph, f"{attention}.scaled_dot_product_attention")["columns"] == 12
    assert splits(graph, "transformer.h.0.mlp.c_proj")["rows"] == 4 * 768


def test_a_bert_of_transformers_whose_mask_is_looked_at() -> None:
    """With a mask it asks for values, but not where torch.export could not answer."""
    transformers = pytest.importorskip("transformers", reason=NEEDED)
    config = transformers.BertConfig(num_hidden_layers=3)
    batch = language_batch(attention_mask=torch.ones(4, 16, dtype=torch.long))
    graph = profile(lambda: transformers.BertForMaskedLM(config), batch, name="bert")
    assert layers(graph) == [(3, "BertLayer")]
    assert not torch.compiler.is_compiling()
    assert not torch.compiler.is_exporting()


def test_a_resnet_and_a_vision_transformer_of_torchvision() -> None:
    torchvision = pytest.importorskip("torchvision", reason=NEEDED)
    images = torch.zeros(4, 3, 224, 224)
    resnet = profile(torchvision.models.resnet50, images, name="resnet50")
    assert layers(resnet) == [(n, "Bottleneck") for n in (1, 2, 1, 3, 1, 5, 1, 2)]
    assert resnet.parameter_bytes == 4 * 25_557_032
    vit = profile(torchvision.models.vit_b_16, images, name="vit")
    assert layers(vit) == [(12, "EncoderBlock")]
    assert vit.parameter_bytes == 4 * 86_567_656
    assert all(operator.splittable for operator in (*resnet.operators, *vit.operators))


def test_a_swin_transformer_of_timm() -> None:
    timm = pytest.importorskip("timm", reason=NEEDED)
    name = "swin_tiny_patch4_window7_224"
    graph = profile(lambda: timm.create_model(name), torch.zeros(4, 3, 224, 224), name=name)
    assert (3, "SwinTransformerBlock") in layers(graph)
    with torch.device("meta"):
        held = sum(p.nbytes for p in timm.create_model(name).parameters())
    assert graph.parameter_bytes == held


def test_a_detector_needs_targets_and_says_so_in_one_line() -> None:
    torchvision = pytest.importorskip("torchvision", reason=NEEDED)
    build = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn
    images = [torch.zeros(3, 64, 64) for _ in range(2)]
    boxes = [{"boxes": torch.zeros(1, 4), "labels": torch.zeros(1, dtype=torch.long)}] * 2
    with refused(ProfileError, "FasterRCNN", "targets"):
        profile(lambda: build(weights=None, weights_backbone=None), [images], name="x")
    with refused(ProfileError, "values") as raised:
        profile(lambda: build(weights=None, weights_backbone=None), [images, boxes], name="x")
    assert "\n" not in str(raised.value)


def splits(graph: OpGraph, name: str) -> dict[str, int]:
    """The dimensions and their largest degrees of the first operator whose name ends so."""
    found = next(operator for operator in graph.operators if operator.name.endswith(name))
    return {split.dimension: split.max_degree for split in found.splits}


SMALL = {
    **{"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 100},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
}


def test_a_llama_of_transformers_splits_by_heads_from_layer_to_layer() -> None:
    transformers = pytest.importorskip("transformers", reason=NEEDED)
    config = transformers.LlamaConfig(**SMALL)
    graph = profile(
        lambda: transformers.LlamaForCausalLM(config),
        {"input_ids": torch.zeros(4, 16, dtype=torch.long)},
        name="llama",
    )
    of_block = [o for o in graph.operators if ".layers.0.self_attn." in o.name]
    assert all(o.split("columns") for o in of_block)
    assert splits(graph, "layers.0.self_attn.add") == {"columns": 4, "attribute": 16}
    assert splits(graph, "layers.0.self_attn.add#2") == {"columns": 2, "attribute": 16}
    assert splits(graph, "layers.0.mlp.act_fn") == {"columns": 96, "attribute": 16}
    assert splits(graph, "layers.0.input_layernorm") == {"attribute": 16}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Qwen3Moe", {"moe_intermediate_size": 48, "num_experts": 16}),
        ("Mixtral", {"intermediate_size": 48, "num_local_experts": 16}),
        (
            "DeepseekV3",
            {
                **{"moe_intermediate_size": 48, "n_routed_experts": 16, "num_experts_per_tok": 4},
                **{"n_group": 4, "topk_group": 2, "first_k_dense_replace": 0, "q_lora_rank": 32},
                **{"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16},
                **{"v_head_dim": 16, "num_key_value_heads": 4},
            },
        ),
    ],
)
def test_experts_of_transformers_split_by_experts_and_features(
    kind: str, changes: dict[str, int]
) -> None:
    transformers = pytest.importorskip("transformers", reason=NEEDED)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")
    tokens = torch.zeros(4, 16, dtype=torch.long)
    graph = profile(lambda: model(config).to(torch.bfloat16), {"input_ids": tokens}, name=kind)
    assert splits(graph, "layers.0.mlp.experts.grouped_mm") == {
        **{
            "experts": 16,
            "columns": 48,
            "rows": 64,
        }  # 48 parts of the gates, and of what they scale
    }
    assert splits(graph, "layers.0.mlp.experts.grouped_mm#2") == {
        **{"experts": 16, "columns": 64, "rows": 48}
    }
    assert splits(graph, "layers.0.mlp.experts.act_fn") == {"experts": 16, "columns": 48}


def test_the_products_of_a_mixture_of_experts_of_transformers_are_counted() -> None:
    transformers = pytest.importorskip("transformers", reason=NEEDED)
    config = transformers.MixtralConfig(
        num_hidden_layers=2, hidden_size=64, intermediate_size=128, vocab_size=100
    )
    build = lambda: transformers.MixtralForCausalLM(config).to(torch.bfloat16)  # noqa: E731
    graph = profile(build, language_batch(), name="mixtral")
    experts = [operator for operator in graph.operators if operator.kind == "grouped_mm"]
    tokens, top = 4 * 16, 2
    gate_and_up, down = 2 * 64 * 128, 128 * 64
    assert sum(o.forward_flops for o in experts) == 2 * 2 * tokens * top * (gate_and_up + down)
    assert sum(o.backward_flops for o in experts) == 2 * sum(o.forward_flops for o in experts)
