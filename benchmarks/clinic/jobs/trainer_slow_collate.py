"""The HF Trainer with a collate function in Python; healthy: stacked tensors."""

import os
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", WANDB_MODE="disabled", TRANSFORMERS_VERBOSITY="error")
import torch
from stopwatch import amount, lap, steps
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(0)
items = [{"input_ids": torch.randint(1, 500, (32,)), "labels": number % 2} for number in range(1024)]


def collate(batch):
    ids = torch.stack([item["input_ids"] for item in batch])
    for _ in range(amount):
        ids = torch.tensor([[int(word) for word in item["input_ids"]] for item in batch])  # fault
    return {"input_ids": ids, "labels": torch.tensor([item["labels"] for item in batch])}


class Laps(TrainerCallback):
    def on_step_end(self, *_, **__):
        lap()


config = BertConfig(
    vocab_size=500, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256,
    max_position_embeddings=64,
)  # fmt: skip
options = TrainingArguments(
    tempfile.mkdtemp(), max_steps=steps, per_device_train_batch_size=32, report_to=[], save_strategy="no",
    logging_strategy="no", disable_tqdm=True, use_cpu=True,
)  # fmt: skip
trainer = Trainer(
    BertForSequenceClassification(config), options, train_dataset=items, data_collator=collate, callbacks=[Laps()]
)
trainer.train()  # fault
