"""LeNet and Caffe's CIFAR-10 quick: small networks for small images."""

from __future__ import annotations

import math

from torch import nn

from hostlib.models.zoo.blocks import Chain, Norm, conv, extent


class LeNet(Chain):
    """Two 5x5 convolutions and two fully connected layers. float32 (N, C, P, P) -> (N, classes).

    Source: LeCun et al. 1998, figure 2, as tf_cnn_benchmarks has it.
    """

    def __init__(self, *, classes: int, channels: int, pixels: int, norm: Norm = "none") -> None:
        super().__init__((channels, pixels, pixels), classes)
        left = extent(pixels, (2, 2), (2, 2), name="LeNet")
        self.features = nn.Sequential(
            conv(channels, 32, 5, norm=norm), nn.MaxPool2d(2), conv(32, 64, 5, norm=norm), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(nn.Linear(64 * left * left, 512), nn.ReLU(), nn.Linear(512, classes))


class Cifar10Quick(Chain):
    """Three 5x5 convolutions, each with an overlapping pool, two fully connected layers. float32 (N, C, P, P) -> (N, classes).

    Caffe rounds up when it pools.

    Source: Caffe's examples/cifar10/cifar10_quick_train_test.prototxt.
    """

    def __init__(self, *, classes: int, channels: int, pixels: int, norm: Norm = "none") -> None:
        super().__init__((channels, pixels, pixels), classes)
        extent(pixels, (3, 2), (2, 2), (2, 2), name="CIFAR-10 quick")
        left = pixels
        for _ in range(3):
            left = math.ceil(max(left - 3, 0) / 2) + 1
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.ReLU(),
            conv(32, 32, 5, norm=norm),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            conv(32, 64, 5, norm=norm),
            nn.AvgPool2d(3, 2, ceil_mode=True),
        )
        self.classifier = nn.Sequential(nn.Linear(64 * left * left, 64), nn.Linear(64, classes))


MODELS = {"cifar10_quick": (Cifar10Quick, ()), "lenet": (LeNet, ())}
