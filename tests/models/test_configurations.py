"""Configurations of transformers become the models that transformers would build."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from support.refusals import refused

from torch_topoopt.models.configurations import LONGEST_DEFAULT, TASKS, configured
from torch_topoopt.profile.profiling import profile

NEEDED = "install the extra `models` of torch_topoopt to compare with transformers"

# fields of config.json as published, without those that cost nothing
LLAMA_8B = {
    **{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"},
    **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
}
LLAMA_1B = {
    **LLAMA_8B,
    **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
    **{"tie_word_embeddings": True, "head_dim": 64},
}
LLAMA_70B = {
    **LLAMA_8B,
    **{"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80},
    "num_attention_heads": 64,
}
QWEN3_30B = {
    **{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144},
    **{"moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32},
    **{"num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8},
    **{"vocab_size": 151936, "max_position_embeddings": 40960, "decoder_sparse_step": 1},
    **{"mlp_only_layers": [], "norm_topk_prob": True, "use_sliding_window": False},
    **{"sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
}
MIXTRAL_8X7B = {
    **{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000},
    **{"max_position_embeddings": 32768, "sliding_window": None, "torch_dtype": "bfloat16"},
}
MISTRAL_7B = {
    **{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096},
}
GPT2 = {
    **{"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024},
    "vocab_size": 50257,
}


def parameters(configuration: dict[str, Any], **options: Any) -> int:
    with torch.device("meta"):
        model = configured(configuration, **options).build()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("configuration", "published"),
    [
        (LLAMA_1B, 1_235_814_400),
        (LLAMA_8B, 8_030_261_248),
        (LLAMA_70B, 70_553_706_496),
        (QWEN3_30B, 30_532_122_624),
        (MIXTRAL_8X7B, 46_702_792_704),
        (MISTRAL_7B, 7_241_732_096),
        (GPT2, 124_439_808),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)
def test_parameters_are_those_of_the_published_models(
    configuration: dict[str, Any], published: int
) -> None:
    assert parameters(configuration) == published


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 2}),
        ("Mistral", {"head_dim": 32}),
        ("Qwen2", {}),
        ("Qwen3", {"num_labels": 5}),
        ("Qwen3Moe", {"moe_intermediate_size": 24, "num_experts": 16}),
        ("Mixtral", {}),
        ("GPT2", {}),
    ],
)
def test_parameters_are_those_of_transformers(
    kind: str, changes: dict[str, Any], task: str
) -> None:
    transformers = pytest.importorskip("transformers", reason=NEEDED)
    small = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 100}
    small |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    if kind == "GPT2":
        small = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    configuration = getattr(transformers, f"{kind}Config")(**{**small, **changes})
    auto = {
        "causal-lm": transformers.AutoModelForCausalLM,
        "sequence-classification": transformers.AutoModelForSequenceClassification,
    }[task]
    with torch.device("meta"):
        theirs = sum(p.numel() for p in auto.from_config(configuration).parameters())
    saved = json.loads(configuration.to_json_string())
    assert parameters(saved, task=task) == theirs


def test_products_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason=NEEDED)
    small = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "head_dim": 16}
    small |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    configuration = transformers.Qwen3Config(**small)
    tokens = torch.zeros(3, 16, dtype=torch.long)
    theirs = profile(
        lambda: transformers.Qwen3ForCausalLM(configuration), {"input_ids": tokens}, name="theirs"
    )
    found = configured(json.loads(configuration.to_json_string()), sequence=16)
    ours = profile(found.build, found.example_batch(3), name="ours")
    assert ours.forward_flops == theirs.forward_flops
    assert ours.backward_flops == theirs.backward_flops
    assert ours.parameter_bytes == theirs.parameter_bytes


DEEPSEEK_V3 = {
    **{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432},
    **{"moe_intermediate_size": 2048, "num_hidden_layers": 61, "first_k_dense_replace": 3},
    **{"num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256},
    **{"n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4},
    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
    **{"v_head_dim": 128, "vocab_size": 129280, "max_position_embeddings": 163840},
    "torch_dtype": "bfloat16",
}


def test_other_types_are_built_by_transformers() -> None:
    pytest.importorskip("transformers", reason=NEEDED)
    corrections = 58 * 256  # of routers, which are buffers
    assert parameters(DEEPSEEK_V3) == 671_026_419_200 - corrections
    small = {"num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 100, "n_routed_experts": 16}
    found = configured({**DEEPSEEK_V3, **small}, sequence=32)
    made = profile(found.build, found.example_batch(2), name="deepseek")
    assert sorted(len(layer.starts) for layer in made.layers) == [1, 3]  # with experts: 1
    with torch.device("meta"):
        assert {p.dtype for p in found.build().parameters()} == {torch.bfloat16}
    assert found.example_batch(2)["input_ids"].shape == (2, 32)
    classifier = {**DEEPSEEK_V3, **small, "num_labels": 5}
    assert parameters(classifier, task="sequence-classification") < parameters(
        {**DEEPSEEK_V3, **small}
    )
    with refused(ValueError, "sequence", "163841", "163840"):
        configured(DEEPSEEK_V3, sequence=163841)
    with refused(ValueError, "causal-lm", "t5"):
        configured({"model_type": "t5"})
    with refused(ValueError, "transformers", "num_hidden_layers"):
        configured({**DEEPSEEK_V3, "num_hidden_layers": "many"})


def test_attention_is_fused_also_where_transformers_has_it_eager_only() -> None:
    pytest.importorskip("transformers", reason=NEEDED)
    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
    small |= {"vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2}
    found = configured({"model_type": "gpt_oss", "num_local_experts": 4, **small}, sequence=32)
    made = profile(found.build, found.example_batch(2), name="gpt-oss")
    kinds = [operator.kind for operator in made.operators]
    assert sum("scaled_dot_product_attention" in kind for kind in kinds) == 2
    assert "softmax" not in kinds


def test_without_transformers_its_types_are_said_to_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(ValueError, "deepseek_v3", "llama", "install transformers"):
        configured(DEEPSEEK_V3)


def test_samples_are_as_long_as_the_model_allows_but_not_longer() -> None:
    def length(configuration: dict[str, Any], **options: Any) -> int:
        return int(configured(configuration, **options).example_batch(2).shape[1])

    assert length(LLAMA_8B) == LONGEST_DEFAULT
    assert length(GPT2) == 1024
    assert length({**MISTRAL_7B, "sliding_window": 512}) == 512
    assert length(LLAMA_8B, sequence=131072) == 131072
    with refused(ValueError, "sequence", "1025", "1024"):
        length(GPT2, sequence=1025)
    with refused(ValueError, "sequence", "8192", "4096"):
        length(MISTRAL_7B, sequence=8192)
    assert length({**MISTRAL_7B, "sliding_window": None}, sequence=8192) == 8192
    assert length({**MISTRAL_7B, "use_sliding_window": False}, sequence=8192) == 8192


def test_types_are_those_of_the_configuration() -> None:
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        with torch.device("meta"):
            model = configured({**GPT2, "dtype": name}).build()
        assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "no-such-type"}, ("model_type", "no-such-type", "gpt2", "qwen3_moe")),
        ({"model_type": None}, ("model_type", "llama")),
        ({"hidden_size": None}, ("hidden_size", "missing")),
        ({"num_hidden_layers": 2.5}, ("num_hidden_layers", "2.5")),
        ({"num_attention_heads": 0}, ("num_attention_heads", "0")),
        ({"hidden_act": "gelu"}, ("hidden_act", "gelu", "silu")),
        ({"attention_bias": True}, ("attention_bias", "True")),
        ({"torch_dtype": "int8"}, ("dtype", "int8")),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(ValueError, *words):
        configured({**LLAMA_8B, **changes})
    with refused(ValueError, "mlp_only_layers"):
        configured({**QWEN3_30B, "mlp_only_layers": [0, 1]})
