"""Run by test_fsdp.py: FSDP2 trains a small transformer. Each rank writes what it saw to FOLDER/rankN.json.

Usage: fsdp_ranks.py FOLDER STEPS
"""

from __future__ import annotations

import hashlib
import json
import sys
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard

import netfold
from hostlib.pytorch.backend import NetfoldProcessGroup  # which registers the backend

WORDS, WIDTH, LAYERS, LENGTH = 1024, 128, 2, 16


class Transformer(torch.nn.Module):
    """Predicts the next word of each place."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        seen = self.words(text)
        ahead = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for layer in self.layers:
            seen = layer(seen, src_mask=ahead, is_causal=True)
        return seen @ self.words.weight.T


def counted(kind: str, name: str, place: int) -> None:
    """Have a method of the backend count the bytes of the whole tensors that it is given, the argument at `place`."""
    method = getattr(NetfoldProcessGroup, name)

    @wraps(method)
    def counting(group: NetfoldProcessGroup, *arguments: Any, **options: Any) -> Any:
        given = arguments[place]
        seen[kind] += [each.nbytes for each in (given if isinstance(given, list) else [given])]
        return method(group, *arguments, **options)

    setattr(NetfoldProcessGroup, name, counting)


seen: dict[str, Any] = {"gathered": [], "scattered": []}
counted("gathered", "_allgather_base", 0)
counted("gathered", "all_gather_single", 0)
counted("gathered", "all_gather_single_coalesced", 0)  # DTensors', of small weights, too
counted("scattered", "_reduce_scatter_base", 1)
counted("scattered", "reduce_scatter_single", 1)
dist.init_process_group("netfold")
rank = dist.get_rank()
torch.manual_seed(0)
model = Transformer()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
assert isinstance(model, FSDPModule)
optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = torch.Generator().manual_seed(rank)
losses = []
for _ in range(int(sys.argv[2])):
    text = torch.randint(0, WORDS, (2, LENGTH + 1), generator=data)
    optimiser.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
weights = torch.cat([parameter.full_tensor().detach().flatten() for parameter in model.parameters()])
torch.save(weights, Path(sys.argv[1], f"weights{rank}.pt"))
seen["weights"] = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
seen["losses"] = losses
group = dist.group.WORLD
assert isinstance(group, NetfoldProcessGroup)
seen["failures"], seen["traffic"] = group.failures, group.traffic
seen["metrics"] = {
    sample.name: sample.value
    for family in netfold.prometheus_collector().collect()
    for sample in family.samples
    if set(sample.labels) == {"group"}
}
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(seen))
dist.destroy_process_group()
