"""Trains a small classifier with Hugging Face's Trainer, as its users write it."""

import argparse
import json

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    """Random words; the label is whether the first is in the lower half of the vocabulary."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(0, 100, (count, 8), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self.words[index]
        return {"input_ids": words, "labels": (words[0] < 50).long()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--max-steps", type=int, default=4)
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--bf16", choices=("false",))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=arguments.output_dir,
            max_steps=arguments.max_steps,
            per_device_train_batch_size=arguments.per_device_train_batch_size,
            gradient_accumulation_steps=arguments.gradient_accumulation_steps,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=Sentences(64),
        eval_dataset=Sentences(32),
    )
    trained = trainer.train()
    evaluated = trainer.evaluate()
    if trainer.is_world_process_zero():
        with open(f"{arguments.output_dir}/losses.json", "w") as file:
            json.dump([trained.training_loss, evaluated["eval_loss"]], file)


if __name__ == "__main__":
    main()
