"""Models of the configuration files of transformers (config.json).

A type is in TYPES if the modules of this folder have as many parameters and the same matrix
products; further settings cost nothing, or are refused. transformers is not needed for them, and
builds all other types.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from torch_topoopt.models import gpt, llama
from torch_topoopt.models.qwen3_moe import Qwen3MoESize
from torch_topoopt.models.sizes import tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Task = Literal["causal-lm", "sequence-classification"]
TASKS: tuple[Task, ...] = get_args(Task)  # the first is the default
LONGEST_DEFAULT = 4096  # tokens: models allow many more than people train with


class ConfiguredModel(NamedTuple):
    """Callables that build the model, and a batch of so many samples (None: of one)."""

    build: Callable[[], nn.Module]
    example_batch: Callable[[int | None], torch.Tensor | dict[str, torch.Tensor]]


@dataclass(frozen=True)
class _Fields:
    """The fields of a configuration; errors are ValueErrors that name one."""

    values: Mapping[str, Any]

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that there is; a whole number above 0."""
        name = next((n for n in names if self.values.get(n) is not None), names[0])
        value = self.values.get(name, default)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"{name}: missing")
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}: {value!r} is not a whole number above 0")
        return value

    def refuse(self, **known: object) -> None:
        """Raises ValueError for a field with another value than the `known` one."""
        for name, value in known.items():
            found = self.values.get(name)
            if found not in (None, value):
                raise ValueError(f"{name}: {found!r} is not supported, only {value!r}")

    def dtype(self) -> torch.dtype:
        name = self.values.get("dtype") or self.values.get("torch_dtype") or "float32"
        dtype = getattr(torch, str(name).removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype: {name!r} is not a floating-point type of PyTorch")
        return dtype

    def window(self) -> int | None:
        """The tokens that attention sees; None for all."""
        kinds = self.values.get("layer_types")
        windowed = self.values.get("use_sliding_window", kinds is None)
        if kinds is not None and "sliding_attention" in kinds:
            windowed = True
        if not windowed or self.values.get("sliding_window") is None:
            return None
        return self.number("sliding_window")


def configured(
    configuration: Mapping[str, Any], *, sequence: int | None = None, task: Task = "causal-lm"
) -> ConfiguredModel:
    """The model of a configuration, for samples of `sequence` tokens.

    By default, samples are as long as it allows, at most LONGEST_DEFAULT. Raises ValueError for an
    unknown type, and for a field that is missing or is not supported.
    """
    fields = _Fields(configuration)
    kind = configuration.get("model_type")
    if not isinstance(kind, str) or kind not in TYPES:
        return _of_transformers(fields, kind, sequence, task)
    tokens = _sequence(fields, sequence)
    labels = _labels(fields) if task == "sequence-classification" else 0
    dtype = fields.dtype()
    size = replace(TYPES[kind](fields), sequence=tokens, labels=labels)
    network: Any = gpt.GPT if isinstance(size, gpt.GPTSize) else llama.Llama
    return ConfiguredModel(lambda: network(size).to(dtype), lambda count: tokens_of(size, count))


def _of_transformers(
    fields: _Fields, kind: object, sequence: int | None, task: Task
) -> ConfiguredModel:
    """A model that transformers builds, in the type of numbers of the configuration."""
    known = f"model_type: {kind!r} is not one of {', '.join(TYPES)}"
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(f"{known}; install transformers for its other types")
    library: Any = importlib.import_module("transformers")
    if kind not in library.CONFIG_MAPPING:
        raise ValueError(f"{known}, and transformers {library.__version__} does not know it either")
    classes = {
        "causal-lm": library.AutoModelForCausalLM,
        "sequence-classification": library.AutoModelForSequenceClassification,
    }
    dtype = fields.dtype()
    level = library.logging.get_verbosity()
    library.logging.set_verbosity_error()  # of warnings about tokens that no profile reads
    try:
        configuration = library.AutoConfig.for_model(**fields.values)
    except Exception as error:
        raise ValueError(f"transformers refuses it: {' '.join(str(error).split())}") from None
    finally:
        library.logging.set_verbosity(level)
    if type(configuration) not in classes[task]._model_mapping:
        raise ValueError(f"model_type: transformers has no {task} model of {kind!r}")
    text = configuration.get_text_config()
    if text.pad_token_id is None:
        text.pad_token_id = 0  # classification of several samples asks for one
    tokens = _in_range(sequence, getattr(text, "max_position_embeddings", None))
    attention = _fused_attention(library, classes[task]._model_mapping[type(configuration)])
    return ConfiguredModel(
        lambda: classes[task].from_config(
            configuration, dtype=dtype, attn_implementation=attention
        ),
        lambda count: {"input_ids": torch.zeros(count or 1, tokens, dtype=torch.long)},
    )


def _fused_attention(library: Any, model: Any) -> str | None:
    """The attention to profile, fused as in the kernels that people train with; None: the model's
    default, which is fused, too."""
    if getattr(model, "_supports_sdpa", True):
        return None
    name = "topoopt_fused"  # without the sinks of GPT-OSS, which cost nothing
    fused: Any = importlib.import_module("transformers.integrations.sdpa_attention")
    masks: Any = importlib.import_module("transformers.masking_utils")
    library.AttentionInterface.register(name, fused.sdpa_attention_forward)
    library.AttentionMaskInterface.register(name, masks.sdpa_mask)
    return name


def _in_range(sequence: int | None, longest: int | None) -> int:
    """`sequence`, by default as long as the model allows (None: any), at most LONGEST_DEFAULT."""
    if sequence is None:
        return min(longest or LONGEST_DEFAULT, LONGEST_DEFAULT)
    if sequence < 1:
        raise ValueError(f"sequence: must be at least 1 (got {sequence})")
    if longest is not None and sequence > longest:
        raise ValueError(f"sequence: {sequence} tokens are more than the model's {longest}")
    return sequence


def _sequence(fields: _Fields, sequence: int | None) -> int:
    window = fields.window()
    found = _in_range(sequence, fields.number("max_position_embeddings", "n_positions"))
    if sequence is None:
        return min(found, window or found)
    if window is not None and sequence > window:
        raise ValueError(
            f"sequence: {sequence} tokens are more than its sliding_window of {window}, whose "
            "attention is not supported"
        )
    return found


def _labels(fields: _Fields) -> int:
    """As many as transformers: num_labels is written as the names in id2label."""
    return len(fields.values.get("id2label") or ()) or fields.number("num_labels", default=2)


def _gpt2(fields: _Fields) -> gpt.GPTSize:
    fields.refuse(add_cross_attention=False)
    hidden = fields.number("n_embd", "hidden_size")
    fields.refuse(n_inner=4 * hidden)
    return gpt.GPTSize(
        blocks=fields.number("n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=fields.number("n_head", "num_attention_heads"),
        sequence=1,
        vocabulary=fields.number("vocab_size"),
        batch_size=1,
        tied=bool(fields.values.get("tie_word_embeddings", True)),
        positions=fields.number("n_positions", "max_position_embeddings"),
    )


def _shared(fields: _Fields, **changes: Any) -> dict[str, Any]:
    """The fields of a LlamaSize."""
    fields.refuse(hidden_act="silu", attention_bias=False, mlp_bias=False)
    hidden, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    return {
        "blocks": fields.number("num_hidden_layers"),
        "hidden": hidden,
        "ffn": fields.number("intermediate_size"),
        "heads": heads,
        "kv_heads": fields.number("num_key_value_heads", default=heads),
        "vocabulary": fields.number("vocab_size"),
        "sequence": 1,
        "batch_size": 1,
        "head": fields.number("head_dim", default=hidden // heads),
        "tied": bool(fields.values.get("tie_word_embeddings", False)),
        **changes,
    }


def _llama(fields: _Fields) -> llama.LlamaSize:
    return llama.LlamaSize(**_shared(fields))


def _qwen2(fields: _Fields) -> llama.LlamaSize:
    return llama.LlamaSize(**_shared(fields, biases=True))


def _qwen3(fields: _Fields) -> llama.LlamaSize:
    head = fields.number("head_dim", default=128)
    return llama.LlamaSize(**_shared(fields, norms=True, head=head))


def _mixtral(fields: _Fields) -> Qwen3MoESize:
    return Qwen3MoESize(
        **_shared(fields, norms=False),
        experts=fields.number("num_local_experts"),
        top=fields.number("num_experts_per_tok"),
    )


def _qwen3_moe(fields: _Fields) -> Qwen3MoESize:
    fields.refuse(decoder_sparse_step=1, mlp_only_layers=[])
    return Qwen3MoESize(
        **_shared(fields, ffn=fields.number("moe_intermediate_size")),
        experts=fields.number("num_experts", "num_local_experts"),
        top=fields.number("num_experts_per_tok"),
        normalised=bool(fields.values.get("norm_topk_prob", False)),
    )


TYPES: Mapping[str, Callable[[_Fields], Any]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
