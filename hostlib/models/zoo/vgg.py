"""VGG: blocks of 3x3 convolutions, each with a pool after it, and three fully connected layers.

Source: Simonyan and Zisserman 2014, table 1, columns A, D and E. Variants: hostlib.models.zoo.variants. Those for small
images are normalised, as in kuangliu's pytorch-cifar, which the thesis uses; the others are not, as in PyTorch.
"""

from __future__ import annotations

from torch import nn

from hostlib.models.zoo.blocks import Chain, Norm, conv, extent
from hostlib.models.zoo.variants import POOLED, USUAL, VariantName, is_small

WIDTHS = (64, 128, 256, 512, 512)
HIDDEN = 4096


class VGG(Chain):
    """VGG. Convolutions have either biases or a normalisation. float32 (N, C, P, P) -> (N, classes).

    Args:
        counts: convolutions per block.
        norm: None for the usual: none, or batch normalisation in a variant for small images.
        variant: of a data set. For small images maps of one pixel are not pooled, and there is one fully connected
            layer; for large ones the last map is pooled to 7x7.
    """

    def __init__(
        self,
        *counts: int,
        classes: int,
        channels: int,
        pixels: int,
        norm: Norm | None = None,
        variant: VariantName = USUAL,
    ) -> None:
        super().__init__((channels, pixels, pixels), classes)
        small = is_small(variant)
        norm = norm or ("batch" if small else "none")
        pools = min(len(WIDTHS), pixels.bit_length() - 1) if small else len(WIDTHS)
        left = extent(pixels, *[(2, 2)] * pools, name="VGG")
        layers: list[nn.Module] = []
        for block, (count, width) in enumerate(zip(counts, WIDTHS, strict=True)):
            for _ in range(count):
                layers.append(conv(channels, width, 3, norm=norm))
                channels = width
            if block < pools:
                layers.append(nn.MaxPool2d(2))
        if variant != USUAL:
            left = 1 if small else POOLED
            layers.append(nn.AdaptiveAvgPool2d(left))
        self.features = nn.Sequential(*layers)
        if small:
            self.classifier = nn.Linear(channels, classes)
            return
        self.classifier = nn.Sequential(
            nn.Linear(channels * left * left, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, classes),
        )


MODELS = {
    "vgg11": (VGG, (1, 1, 2, 2, 2)),
    "vgg16": (VGG, (2, 2, 3, 3, 3)),
    "vgg19": (VGG, (2, 2, 4, 4, 4)),
    "vgg19_22k": (VGG, (2, 2, 4, 4, 4)),
}
