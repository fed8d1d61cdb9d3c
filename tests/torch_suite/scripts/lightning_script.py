"""Lightning's Trainer, with netfold for its strategy's process_group_backend. Usage: FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

import netfold


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
module = Module()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend=netfold.register()),
    max_epochs=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8))
weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
Path(sys.argv[1], f"rank{trainer.global_rank}.json").write_text(
    json.dumps([torch.distributed.get_backend(), weights.tolist(), [float(trainer.callback_metrics["loss"])], [2.0]])
)
