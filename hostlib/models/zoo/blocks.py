"""Building blocks of networks: convolutions with normalisation, parallel branches, and feature map sizes."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from hostlib.errors import ModelError

Norm = Literal["batch", "group", "none"]
NORM_GROUPS = 32


class Network(nn.Module):
    """A network that describes its input and output.

    Attributes:
        input_shape: of one example.
        classes: number of classes of its last layer.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if min(*input_shape, classes) < 1:
            raise ModelError(f"classes, pixels and channels must be at least 1, not {classes} and {input_shape}")
        self.input_shape = input_shape
        self.classes = classes


class Chain(Network):
    """Features, flattened, and a classifier. float32 (N, C, H, W) -> (N, classes)."""

    features: nn.Module
    classifier: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]


class Branches(nn.ModuleList):
    """Parallel branches, concatenated. float32 (N, C, H, W) -> (N, sum of their channels, H', W')."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([path(x) for path in self], dim=1)


def normalisation(norm: Norm, channels: int, scale: bool = True) -> nn.Module:
    """A normalisation of a number of channels; without `scale`, it only shifts.

    Group normalisation has 32 groups, or the largest smaller number that divides the channels.
    """
    if norm == "none":
        return nn.Identity()
    made = nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(math.gcd(NORM_GROUPS, channels), channels)
    if not scale:
        del made.weight  # constant ones: some of PyTorch's kernels require a scale
        made.register_buffer("weight", torch.ones(channels), persistent=False)
    return made


def conv(
    into: int,
    width: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    *,
    same: bool = True,
    norm: Norm = "none",
    scale: bool = True,
    groups: int = 1,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """A convolution, its normalisation (which makes a bias superfluous) and its activation.

    Args:
        same: padded so that the map keeps its size, except for the stride.
    """
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (rows // 2, columns // 2) if same else 0
    plain = nn.Conv2d(into, width, (rows, columns), stride, padding, groups=groups, bias=norm == "none")
    if norm == "none":
        return nn.Sequential(plain, activation())
    return nn.Sequential(plain, normalisation(norm, width, scale), activation())


def extent(pixels: int, *windows: tuple[int, int], name: str) -> int:
    """Width of a feature map after unpadded windows of (kernel, stride).

    Raises:
        ModelError: nothing is left.
    """
    least = 1
    for kernel, stride in reversed(windows):
        least = (least - 1) * stride + kernel
    if pixels < least:
        raise ModelError(f"{name} takes images of {least} pixels or more, not {pixels}")
    for kernel, stride in windows:
        pixels = (pixels - kernel) // stride + 1
    return pixels
