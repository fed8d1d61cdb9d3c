"""AlexNet and Overfeat, as in tf_cnn_benchmarks: no local response normalisation, no groups."""

from __future__ import annotations

import itertools

from torch import nn

from hostlib.models.zoo.blocks import Chain, Norm, conv, extent


class AlexNet(Chain):
    """Five convolutions, three fully connected layers. float32 (N, C, P, P) -> (N, classes).

    Source: Krizhevsky 2014, "One weird trick", footnote 1 (the widths).
    """

    def __init__(self, *, classes: int, channels: int, pixels: int, norm: Norm = "none") -> None:
        super().__init__((channels, pixels, pixels), classes)
        left = extent(pixels, (11, 4), (3, 2), (3, 2), (3, 2), name="AlexNet")
        self.features = nn.Sequential(
            conv(channels, 64, 11, 4, same=False, norm=norm),
            nn.MaxPool2d(3, 2),
            conv(64, 192, 5, norm=norm),
            nn.MaxPool2d(3, 2),
            conv(192, 384, 3, norm=norm),
            conv(384, 384, 3, norm=norm),
            conv(384, 256, 3, norm=norm),
            nn.MaxPool2d(3, 2),
        )
        self.classifier = _fully_connected(256 * left * left, 4096, 4096, classes)


class Overfeat(Chain):
    """Overfeat's fast model: five convolutions, three fully connected layers. float32 (N, C, P, P) -> (N, classes).

    Source: Sermanet et al. 2013, table 1.
    """

    def __init__(self, *, classes: int, channels: int, pixels: int, norm: Norm = "none") -> None:
        super().__init__((channels, pixels, pixels), classes)
        left = extent(pixels, (11, 4), (2, 2), (5, 1), (2, 2), (2, 2), name="Overfeat")
        self.features = nn.Sequential(
            conv(channels, 96, 11, 4, same=False, norm=norm),
            nn.MaxPool2d(2),
            conv(96, 256, 5, same=False, norm=norm),
            nn.MaxPool2d(2),
            conv(256, 512, 3, norm=norm),
            conv(512, 1024, 3, norm=norm),
            conv(1024, 1024, 3, norm=norm),
            nn.MaxPool2d(2),
        )
        self.classifier = _fully_connected(1024 * left * left, 3072, 4096, classes)


def _fully_connected(*widths: int) -> nn.Sequential:
    """Linear layers from each width to the next, with ReLU in between."""
    layers: list[nn.Module] = []
    for into, width in itertools.pairwise(widths):
        layers += [nn.Linear(into, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


MODELS = {"alexnet": (AlexNet, ()), "overfeat": (Overfeat, ())}
