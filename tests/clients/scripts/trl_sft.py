"""Fine-tunes a tiny Llama with TRL's SFTTrainer, on tokens that need no tokenizer's files."""

import argparse
import json
import os

import cpu_accelerator
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--per_device_train_batch_size", type=int, default=2)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--bf16", choices=("false",))
    arguments = parser.parse_args()
    is_sharded = os.environ.get("ACCELERATE_USE_FSDP") == "true"
    if is_sharded:
        cpu_accelerator.use()
    torch.manual_seed(0)
    names = {f"w{i}": i for i in range(WORDS)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(names, unk_token="w0")),
        pad_token="w0",
        eos_token="w1",
    )
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    tokens = torch.randint(2, WORDS, (64, 16)).tolist()
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config),
        args=SFTConfig(
            output_dir=arguments.output_dir,
            max_steps=8,
            per_device_train_batch_size=arguments.per_device_train_batch_size,
            gradient_accumulation_steps=arguments.gradient_accumulation_steps,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=not is_sharded,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"input_ids": tokens}),
        processing_class=tokenizer,
    )
    trainer.train()
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump(losses, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
