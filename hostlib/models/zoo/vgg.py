"""VGG: blocks of 3x3 convolutions, each with a pool after it, and three fully connected layers.

Source: Simonyan and Zisserman 2014, table 1, columns A, D and E.
"""

from __future__ import annotations

from torch import nn

from hostlib.models.zoo.blocks import Chain, Norm, conv, extent

WIDTHS = (64, 128, 256, 512, 512)
HIDDEN = 4096


class VGG(Chain):
    """VGG. Convolutions have either biases or a normalisation. float32 (N, C, P, P) -> (N, classes)."""

    def __init__(self, *counts: int, classes: int, channels: int, pixels: int, norm: Norm = "none") -> None:
        super().__init__((channels, pixels, pixels), classes)
        left = extent(pixels, *[(2, 2)] * len(WIDTHS), name="VGG")
        layers: list[nn.Module] = []
        for count, width in zip(counts, WIDTHS, strict=True):
            for _ in range(count):
                layers.append(conv(channels, width, 3, norm=norm))
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
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
