"""Models for 8x8 grey images: small enough for two cores, with layers of unlike sizes."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from hostlib.errors import UnknownNameError

CLASSES = 10


class LeNet(nn.Module):
    """LeNet-5 scaled to 8x8 input: two convolutions, three fully connected layers. float32 (N, 1, 8, 8) -> (N, 10).

    Source: LeCun et al. 1998, figure 2.
    """

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

    Source: Simonyan and Zisserman 2014, table 1.
    """

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

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {"lenet": LeNet, "vgg": SmallVGG}


def build_model(name: str) -> nn.Module:
    """A model by name, freshly initialised from torch's seed.

    Raises:
        UnknownNameError: no such model.
    """
    if name not in MODELS:
        raise UnknownNameError("model", name, MODELS)
    return MODELS[name]()
