"""MobileNetV2: inverted residuals with depthwise convolutions.

Source: Sandler et al. 2018, tables 1 and 2. Variants: hostlib.models.zoo.variants.
"""

from __future__ import annotations

from torch import Tensor, nn

from hostlib.models.zoo.blocks import Network, Norm, conv
from hostlib.models.zoo.variants import USUAL, VariantName, is_small

# Expansion, channels, repetitions, stride of the first.
ROWS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
LAST = 1280
UNSTRIDED = 24  # channels of the block that keeps the size of small images


class Inverted(nn.Module):
    """Expand, depthwise, project, with a shortcut where shapes agree. float32 (N, C, H, W) -> (N, C', H', W')."""

    def __init__(self, into: int, width: int, stride: int, expansion: int, norm: Norm) -> None:
        super().__init__()
        wide = into * expansion
        steps = [conv(into, wide, 1, norm=norm, activation=nn.ReLU6)] if expansion > 1 else []
        self.body = nn.Sequential(
            *steps,
            conv(wide, wide, 3, stride, norm=norm, groups=wide, activation=nn.ReLU6),
            conv(wide, width, 1, norm=norm, activation=nn.Identity),
        )
        self.around = stride == 1 and into == width

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x)
        return made + x if self.around else made


class MobileNetV2(Network):
    """MobileNetV2. float32 (N, C, P, P) -> (N, classes).

    Args:
        variant: of a data set; for small images the stem and the block of 24 channels have no stride.
    """

    def __init__(
        self, *, classes: int, channels: int, pixels: int, norm: Norm = "batch", variant: VariantName = USUAL
    ) -> None:
        super().__init__((channels, pixels, pixels), classes)
        small = is_small(variant)
        layers: list[nn.Module] = [conv(channels, 32, 3, 1 if small else 2, norm=norm, activation=nn.ReLU6)]
        into = 32
        for expansion, width, count, usual_stride in ROWS:
            stride = 1 if small and width == UNSTRIDED else usual_stride
            for number in range(count):
                layers.append(Inverted(into, width, stride if number == 0 else 1, expansion, norm))
                into = width
        layers.append(conv(into, LAST, 1, norm=norm, activation=nn.ReLU6))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(LAST, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


MODELS = {"mobilenet2": (MobileNetV2, ())}
