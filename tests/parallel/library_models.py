"""Tiny models of other people's libraries, as their users build and call them.

Parts that are random in training are off: every rank has random numbers of its own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

NEEDED = "requirements-clients.txt has the libraries whose models these tests train"
LENGTH, WORDS = 8, 100
DECODER = {
    **{"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": WORDS},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
}


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=NEEDED)


def decoder(kind: str, **changes: Any) -> nn.Module:
    transformers = library("transformers")
    config = getattr(transformers, f"{kind}Config")(**{**DECODER, **changes})
    model: nn.Module = getattr(transformers, f"{kind}ForCausalLM")(config)
    return model


def checkpointed() -> nn.Module:
    model = decoder("Llama", use_cache=False)
    model.gradient_checkpointing_enable()
    return model.train()


def lora() -> nn.Module:
    peft = library("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model: nn.Module = peft.get_peft_model(decoder("Llama"), config)
    return model


def vision_transformer() -> nn.Module:
    transformers = library("transformers")
    sizes = {"image_size": 32, "patch_size": 8, "num_labels": 10}
    layers = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96}
    config = transformers.ViTConfig(**sizes, **layers, num_attention_heads=4)
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model


def whisper() -> nn.Module:
    transformers = library("transformers")
    sides = {
        f"{side}_{size}": count
        for side in ("encoder", "decoder")
        for size, count in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
    }
    lengths = {"num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 16}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(
        d_model=64, vocab_size=WORDS, dropout=0.0, **sides, **lengths, **tokens
    )
    model: nn.Module = transformers.WhisperForConditionalGeneration(config)
    return model


def unet() -> nn.Module:
    model: nn.Module = library("diffusers").UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=32,
        attention_head_dim=4,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    return model


def dit() -> nn.Module:
    model: nn.Module = library("diffusers").DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        num_embeds_ada_norm=10,
        norm_num_groups=8,
    )
    for module in model.modules():
        if hasattr(module, "dropout_prob"):  # drops labels
            module.dropout_prob = 0.0
    return model


def gpt2(words: int) -> nn.Module:
    transformers = library("transformers")
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16, "vocab_size": words}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    drops = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    config = transformers.GPT2Config(**sizes, **ends, **drops, use_cache=False)
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def timm_transformer(**options: Any) -> nn.Module:
    model: nn.Module = library("timm").create_model(
        "vit_tiny_patch16_224",
        **{"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4},
        num_classes=10,
        **options,
    )
    return model


def swin() -> nn.Module:
    model: nn.Module = library("timm").create_model(
        "swin_tiny_patch4_window7_224",
        img_size=56,
        embed_dim=32,
        depths=(2, 2),
        num_heads=(2, 4),
        num_classes=10,
        drop_path_rate=0.0,
    )
    return model


def torchvision_transformer() -> nn.Module:
    model: nn.Module = library("torchvision").models.VisionTransformer(
        **{"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4},
        **{"hidden_dim": 64, "mlp_dim": 96, "num_classes": 10},
    )
    return model


def _words(samples: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, WORDS, (samples, LENGTH), generator=generator)


def _tokens(samples: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_ids": _words(samples, generator)}


def _masked(samples: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    mask = torch.ones(samples, LENGTH, dtype=torch.long)
    return {**_tokens(samples, generator), "attention_mask": mask}


def _speech(samples: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    features = torch.randn(samples, 16, 32, generator=generator)
    return {"input_features": features, "decoder_input_ids": _words(samples, generator)}


def _images(
    name: str, size: int, samples: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    return {name: torch.randn(samples, 3, size, size, generator=generator)}


def _noisy(
    name: str, size: int, more: dict[str, Any], samples: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    image = torch.randn(samples, 4, size, size, generator=generator)
    times = torch.randint(0, 1000, (samples,), generator=generator)
    extra = {key: make(samples, generator) for key, make in more.items()}
    return {name: image, "timestep": times, **extra}


def _labels(samples: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 10, (samples,), generator=generator)


def _texts(samples: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(samples, 5, 32, generator=generator)


Batch = dict[str, torch.Tensor]
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, torch.Generator], Batch]]] = {
    "llama": (functools.partial(decoder, "Llama"), _tokens),
    "llama without cache": (functools.partial(decoder, "Llama", use_cache=False), _tokens),
    "llama with a mask": (functools.partial(decoder, "Llama"), _masked),
    "llama with checkpoints": (checkpointed, _tokens),
    "qwen3 of experts": (
        functools.partial(
            decoder, "Qwen3Moe", moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2
        ),
        _tokens,
    ),
    "llama with lora": (lora, _tokens),
    "vit": (vision_transformer, functools.partial(_images, "pixel_values", 32)),
    "whisper": (whisper, _speech),
    "unet": (unet, functools.partial(_noisy, "sample", 16, {"encoder_hidden_states": _texts})),
    "dit": (dit, functools.partial(_noisy, "hidden_states", 8, {"class_labels": _labels})),
    "vit of timm": (timm_transformer, functools.partial(_images, "x", 32)),
    "vit of timm without a class": (
        functools.partial(timm_transformer, class_token=False, global_pool="avg"),
        functools.partial(_images, "x", 32),
    ),
    "swin of timm": (swin, functools.partial(_images, "x", 56)),
    "vit of torchvision": (torchvision_transformer, functools.partial(_images, "x", 32)),
}


def build(name: str) -> nn.Module:
    """With the same values every time."""
    torch.manual_seed(7)
    return MODELS[name][0]()


def batch(name: str, samples: int, seed: int = 0) -> Batch:
    return MODELS[name][1](samples, torch.Generator().manual_seed(seed))


def loss(output: Any) -> torch.Tensor:
    """The mean over the samples of something that no symmetry makes zero."""
    made = getattr(output, "logits", getattr(output, "sample", output))
    return ((made - 0.3) ** 2).mean()
