"""Fine-tunes a tiny Llama with TRL's SFTTrainer, on tokens that need no tokenizer's files."""

import argparse
import json

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    arguments = parser.parse_args()
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
            per_device_train_batch_size=2,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
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
