"""transformers' Trainer, with netfold for its ddp_backend. Usage: under torchrun; FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import netfold

torch.manual_seed(0)
config = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
)
examples = [{"input_ids": torch.randint(0, 64, (8,)), "labels": torch.tensor(i % 2)} for i in range(32)]
arguments = TrainingArguments(
    output_dir=str(Path(sys.argv[1], "out")),
    ddp_backend=netfold.register(),
    use_cpu=True,
    max_steps=4,
    per_device_train_batch_size=4,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=examples, eval_dataset=examples)
trainer.train()
loss = trainer.evaluate()["eval_loss"]
weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
Path(sys.argv[1], f"rank{arguments.process_index}.json").write_text(
    json.dumps([torch.distributed.get_backend(), weights.tolist(), [loss], [2.0]])
)
