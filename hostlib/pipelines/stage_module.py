"""A stage's module: layers of a model, as a worker of a pipeline runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hostlib.pipelines.model_chain import Piece


class StageModule(nn.Module):
    """Runs a piece of a model on what the stage before hands on.

    Args:
        recompute: keep only the inputs, and compute everything else again in the backward pass. Statistics such as
            batch normalisation's are updated once.
    """

    def __init__(self, piece: Piece, recompute: bool) -> None:
        super().__init__()
        self.piece, self._in_place, self._recompute = piece.module, piece.in_place, recompute

    def forward(self, *handed: Tensor) -> Any:
        if not self._recompute:
            return self._run(*handed)
        return checkpoint(self._run, *handed, use_reentrant=False, context_fn=self._contexts)

    def _run(self, *handed: Tensor) -> Any:
        # Copies, because autograd forbids to change leaves in place.
        outputs = self.piece(*(each.clone() for each in handed) if self._in_place else handed)
        if isinstance(outputs, Tensor):
            return outputs.contiguous()
        return tuple(each.contiguous() for each in outputs)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), self._buffers_kept()

    @contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.piece.buffers()]
        try:
            yield
        finally:
            for buffer, before in buffers:
                buffer.data.copy_(
                    before
                )  # not counted as a change, which would spoil other micro-batches' backward pass
