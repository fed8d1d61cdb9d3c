"""accelerate's loop, with netfold for its backend's name. Usage: under torchrun; FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import PartialState

import netfold

state = PartialState(cpu=True, backend=netfold.register())
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model, optimiser, loader = torch.nn.Linear(8, 1), None, torch.utils.data.DataLoader(data, batch_size=8)
optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimiser, loader = accelerator.prepare(model, optimiser, loader)
for inputs, targets in loader:
    optimiser.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
gathered = accelerator.gather_for_metrics(loss.detach())
total = accelerator.reduce(torch.tensor([1.0]), reduction="sum")
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
Path(sys.argv[1], f"rank{accelerator.process_index}.json").write_text(
    json.dumps([torch.distributed.get_backend(), weights.tolist(), gathered.tolist(), total.tolist()])
)
accelerator.end_training()
