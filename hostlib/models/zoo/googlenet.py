"""GoogLeNet: nine inception modules, as in tf_cnn_benchmarks.

Source: Szegedy et al. 2014, table 1.
"""

from __future__ import annotations

from torch import Tensor, nn

from hostlib.models.zoo.blocks import Branches, Network, Norm, conv

# Widths of 1x1; 1x1 before 3x3, 3x3; 1x1 before 5x5, 5x5; 1x1 after the pool. A pool precedes each change of size.
MODULES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def _module(into: int, widths: tuple[int, ...], norm: Norm) -> Branches:
    one, narrow3, three, narrow5, five, pooled = widths
    return Branches(
        [
            conv(into, one, 1, norm=norm),
            nn.Sequential(conv(into, narrow3, 1, norm=norm), conv(narrow3, three, 3, norm=norm)),
            nn.Sequential(conv(into, narrow5, 1, norm=norm), conv(narrow5, five, 5, norm=norm)),
            nn.Sequential(nn.MaxPool2d(3, 1, padding=1), conv(into, pooled, 1, norm=norm)),
        ]
    )


class GoogLeNet(Network):
    """Without auxiliary heads. float32 (N, C, P, P) -> (N, classes)."""

    def __init__(self, *, classes: int, channels: int, pixels: int, norm: Norm = "none") -> None:
        super().__init__((channels, pixels, pixels), classes)
        layers: list[nn.Module] = [
            conv(channels, 64, 7, 2, norm=norm),
            nn.MaxPool2d(3, 2, padding=1),
            conv(64, 64, 1, norm=norm),
            conv(64, 192, 3, norm=norm),
        ]
        into = 192
        for size in MODULES:
            layers.append(nn.MaxPool2d(3, 2, padding=1))
            for widths in size:
                layers.append(_module(into, widths, norm))
                into = widths[0] + widths[2] + widths[4] + widths[5]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


MODELS = {"googlenet": (GoogLeNet, ())}
