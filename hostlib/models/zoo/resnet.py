"""ResNets: 18 layers as first published; 50 to 200 as slim's resnet_v2, or with version=1 as first published.

A shortcut's convolution is constructed first in its block, as in TensorFlow.

Sources: He et al. 2015, table 1 (version 1); He et al. 2016, figure 1b, and TensorFlow slim's resnet_v2 (version 2). Variants:
hostlib.models.zoo.variants.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from hostlib.errors import ModelError
from hostlib.models.zoo.blocks import Network, Norm, conv, normalisation
from hostlib.models.zoo.variants import USUAL, VariantName, is_small

EXPANSION = 4
Unit = Literal["basic", "bottleneck"]


class Residual(nn.Module):
    """Convolutions and a shortcut, then ReLU. float32 (N, C, H, W) -> (N, C', H / stride, W / stride).

    Source: He et al. 2015, figure 5; where shapes differ the shortcut is a 1x1 convolution (option B).
    """

    def __init__(self, unit: Unit, into: int, depth: int, stride: int, norm: Norm) -> None:
        super().__init__()
        width = depth if unit == "basic" else EXPANSION * depth
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or into != width:
            self.shortcut = conv(into, width, 1, stride, norm=norm, activation=nn.Identity)
        if unit == "basic":
            self.body = nn.Sequential(
                conv(into, depth, 3, stride, norm=norm), conv(depth, depth, 3, norm=norm, activation=nn.Identity)
            )
        else:
            self.body = nn.Sequential(
                conv(into, depth, 1, norm=norm),
                conv(depth, depth, 3, stride, norm=norm),
                conv(depth, width, 1, norm=norm, activation=nn.Identity),
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class PreActivated(nn.Module):
    """slim's bottleneck unit of version 2. float32 (N, C, H, W) -> (N, 4 depth, H / stride, W / stride).

    Its first normalisation precedes both branches; a shortcut of unchanged depth is a subsampling pool.
    """

    def __init__(self, into: int, depth: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.preact = nn.Sequential(normalisation(norm, into), nn.ReLU())
        self.wider = into != EXPANSION * depth
        if self.wider:
            self.shortcut = nn.Conv2d(into, EXPANSION * depth, 1, stride)
        self.body = nn.Sequential(
            conv(into, depth, 1, norm=norm),
            conv(depth, depth, 3, stride, norm=norm),
            nn.Conv2d(depth, EXPANSION * depth, 1),
        )
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        ready = self.preact(x)
        around = self.shortcut(ready) if self.wider else x[:, :, :: self.stride, :: self.stride]
        return self.body(ready) + around  # type: ignore[no-any-return]


class ResNet(Network):
    """A stem, four blocks of units, one fully connected layer. float32 (N, C, P, P) -> (N, classes).

    Args:
        counts: units per block.
        version: 1, or 2 with pre-activation; 0 for the usual: 1 for basic units and variants, 2 for bottlenecks.
        variant: of a data set; has a stem of 3x3 without stride or pool if images are small.
    """

    def __init__(
        self,
        unit: Unit,
        counts: tuple[int, ...],
        *,
        classes: int,
        channels: int,
        pixels: int,
        norm: Norm = "batch",
        version: int = 0,
        variant: VariantName = USUAL,
    ) -> None:
        super().__init__((channels, pixels, pixels), classes)
        only_first = unit == "basic" or variant != USUAL
        version = version or (1 if only_first else 2)
        if version not in (1, 2) or (only_first and version == 2):
            raise ModelError(f"version of this ResNet must be {'1' if only_first else '1 or 2'}, not {version}")
        if is_small(variant):
            self.stem = nn.Sequential(conv(channels, 64, 3, norm=norm))
        else:
            stem = conv(channels, 64, 7, 2, norm=norm) if version == 1 else nn.Conv2d(channels, 64, 7, 2, 3)
            self.stem = nn.Sequential(stem, nn.MaxPool2d(3, 2, padding=1))
        into = 64
        units: list[nn.Module] = []
        for block, count in enumerate(counts):
            depth = 64 * 2**block
            for number in range(count):
                # The first unit has the stride; in slim, the last unit of the previous block has it.
                if version == 1:
                    stride = 2 if block > 0 and number == 0 else 1
                    units.append(Residual(unit, into, depth, stride, norm))
                else:
                    stride = 2 if block < len(counts) - 1 and number == count - 1 else 1
                    units.append(PreActivated(into, depth, stride, norm))
                into = depth if unit == "basic" else EXPANSION * depth
        self.blocks = nn.Sequential(*units)
        last = [normalisation(norm, into), nn.ReLU()] if version == 2 else []
        self.head = nn.Sequential(*last, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))  # type: ignore[no-any-return]


MODELS = {
    "resnet18": (ResNet, ("basic", (2, 2, 2, 2))),
    "resnet50": (ResNet, ("bottleneck", (3, 4, 6, 3))),
    "resnet101": (ResNet, ("bottleneck", (3, 4, 23, 3))),
    "resnet152": (ResNet, ("bottleneck", (3, 8, 36, 3))),
    "resnet200": (ResNet, ("bottleneck", (3, 24, 36, 3))),
}
