"""Models for the digits, which are small grey-scale images.

LeNet and VGG are small enough for two cores; ResNet-18 has a realistic size. Their layers differ in size, as those of
larger models do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hostlib.errors import UnknownNameError
from hostlib.models.zoo.catalogue import SMALL_INPUT

CLASSES = 10
NORM_GROUPS = 32
RESNET_PIXELS = 32


class LeNet(nn.Module):
    """LeNet-5 scaled to 8x8 input: two convolutions, three fully connected layers. float32 (N, 1, 8, 8) -> (N, 10).

    Source: LeCun et al. 1998, figure 2.
    """

    input_shape = SMALL_INPUT

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(32 * 2 * 2, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))  # type: ignore[no-any-return]


class SmallVGG(nn.Module):
    """VGG's pattern (pairs of 3x3 convolutions, then pooling) for 8x8 input. float32 (N, 1, 8, 8) -> (N, 10).

    Source: Simonyan and Zisserman 2014, table 1; initial weights: He et al. 2015, "Delving Deep into Rectifiers".
    """

    input_shape = SMALL_INPUT

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for width in (32, 64, 128):
            for _ in range(2):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
        )
        # With torch's default, a signal loses five sixths of its variance in each of nine layers, and nothing is learnt.
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. float32 (N, C, H, W) -> (N, width, H / stride, W / stride).

    Source: He et al. 2015, figure 5, left; the shortcut is a 1x1 convolution where shapes differ (option B).
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            nn.GroupNorm(NORM_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(NORM_GROUPS, width),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.around = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.GroupNorm(NORM_GROUPS, width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.around(x))


class ResNet18(nn.Module):
    """ResNet-18, 11.2 million parameters. float32 (N, 1, 8, 8) or (N, 1, 32, 32) -> (N, 10).

    The stem is the one for small images (a 3x3 convolution, no pooling). Images of 8x8 are enlarged to 32x32: the last
    stage has an eighth of the input's width, and on a single pixel eight of nine weights of each 3x3 kernel would never
    get a gradient.

    GroupNorm instead of BatchNorm: running statistics would either differ between ranks, so that weights would not be
    identical bit for bit, or have to be broadcast in every forward pass, outside of any mechanism. Also, statistics
    over a rank's few images are poor (Wu and He 2018, figure 1).

    Source: He et al. 2015, table 1 (blocks 2, 2, 2, 2) and section 4.2 (the stem).
    """

    input_shape = SMALL_INPUT

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.GroupNorm(NORM_GROUPS, 64), nn.ReLU()
        )
        blocks = []
        into = 64
        for width in (64, 128, 256, 512):
            blocks += [BasicBlock(into, width, 1 if width == 64 else 2), BasicBlock(width, width, 1)]
            into = width
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(into, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] < RESNET_PIXELS:
            x = nn.functional.interpolate(x, size=(RESNET_PIXELS, RESNET_PIXELS))
        features = self.blocks(self.stem(x))
        return self.classifier(features.mean((2, 3)))  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {"lenet": LeNet, "resnet18": ResNet18, "vgg": SmallVGG}


def build_model(name: str) -> nn.Module:
    """Build a model by name, freshly initialised from torch's seed.

    Raises:
        UnknownNameError: there is no such model.
    """
    if name not in MODELS:
        raise UnknownNameError("model", name, MODELS)
    return MODELS[name]()
