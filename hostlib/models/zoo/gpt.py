"""GPT-2: a transformer that predicts the next token.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3 and table 2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hostlib.errors import ModelError
from hostlib.models.zoo.blocks import Network

SPREAD = 0.02


class Attention(nn.Module):
    """Causal multi-head self-attention. float32 (N, T, width) -> (N, T, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and two fully connected layers, each with a residual connection. float32 (N, T, width) -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        moved: Tensor = x + self.inner(self.norm2(x))
        return moved


class GPT2(Network):
    """GPT-2; the head shares the weights of the token embedding. int64 (N, T) -> float32 (N, T, classes), T up to
    context.

    Args:
        classes: size of the vocabulary.
        context: maximum number of tokens.
    """

    input_dtype = torch.int64

    def __init__(self, *, classes: int, context: int, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__((context,), classes)
        if min(layers, width, heads) < 1 or width % heads:
            raise ModelError(f"layers, width and heads must be at least 1, and {heads} heads must divide {width}")
        self.tokens = nn.Embedding(classes, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if name.endswith("weight") and parameter.dim() > 1:
                # Residual branches are initialised the smaller, the more layers there are.
                ends = name.endswith(("attention.out.weight", "inner.2.weight"))
                nn.init.normal_(parameter, std=SPREAD / (2 * layers) ** 0.5 if ends else SPREAD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


MODELS = {"gpt2": (GPT2, ())}
