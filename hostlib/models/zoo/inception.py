"""Inception-v3, as in slim: normalisations only shift, and the auxiliary head is an option.

Source: Szegedy et al. 2015, "Rethinking the Inception Architecture", table 1 and figures 5 to 7; TensorFlow slim.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from hostlib.models.zoo.blocks import Branches, Network, Norm, conv, extent

# Unpadded windows (kernel, stride) from the image to the auxiliary head's input, and the head's own.
TRUNK = ((3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (3, 2))
AUXILIARY_POOL = (5, 3)


class InceptionV3(Network):
    """Inception-v3. float32 (N, C, P, P) -> (N, classes); with the auxiliary head, in training, a pair of these.

    Args:
        auxiliary: with the auxiliary head, which only training uses.
    """

    def __init__(
        self, *, classes: int, channels: int, pixels: int, norm: Norm = "batch", auxiliary: bool = False
    ) -> None:
        super().__init__((channels, pixels, pixels), classes)
        extent(pixels, *TRUNK, (3, 2), name="Inception-v3")
        part = partial(conv, norm=norm, scale=False)
        self.trunk = nn.Sequential(
            part(channels, 32, 3, 2, same=False),
            part(32, 32, 3, same=False),
            part(32, 64, 3),
            nn.MaxPool2d(3, 2),
            part(64, 80, 1),
            part(80, 192, 3, same=False),
            nn.MaxPool2d(3, 2),
            _wide(part, 192, 32),
            _wide(part, 256, 64),
            _wide(part, 288, 64),
            _to_17(part, 288),
            _factorised(part, 128),
            _factorised(part, 160),
            _factorised(part, 160),
            _factorised(part, 192),
        )
        self.auxiliary = _auxiliary(part, pixels, classes) if auxiliary else None
        self.last = nn.Sequential(_to_8(part), _forked(part, 1280), _forked(part, 2048))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.trunk(x)
        logits: Tensor = self.head(self.last(x))
        return (logits, self.auxiliary(x)) if self.auxiliary is not None and self.training else logits


Part = partial[nn.Sequential]


def _pooled(part: Part, into: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1, count_include_pad=False), part(into, width, 1))


def _wide(part: Part, into: int, pooled: int) -> Branches:
    """Modules at 35x35, figure 5."""
    return Branches(
        [
            part(into, 64, 1),
            nn.Sequential(part(into, 48, 1), part(48, 64, 5)),
            nn.Sequential(part(into, 64, 1), part(64, 96, 3), part(96, 96, 3)),
            _pooled(part, into, pooled),
        ]
    )


def _to_17(part: Part, into: int) -> Branches:
    return Branches(
        [
            part(into, 384, 3, 2, same=False),
            nn.Sequential(part(into, 64, 1), part(64, 96, 3), part(96, 96, 3, 2, same=False)),
            nn.MaxPool2d(3, 2),
        ]
    )


def _factorised(part: Part, width: int) -> Branches:
    """Modules at 17x17, figure 6."""
    row, column = (1, 7), (7, 1)
    return Branches(
        [
            part(768, 192, 1),
            nn.Sequential(part(768, width, 1), part(width, width, row), part(width, 192, column)),
            nn.Sequential(
                part(768, width, 1),
                part(width, width, column),
                part(width, width, row),
                part(width, width, column),
                part(width, 192, row),
            ),
            _pooled(part, 768, 192),
        ]
    )


def _auxiliary(part: Part, pixels: int, classes: int) -> nn.Sequential:
    rows = extent(pixels, *TRUNK, AUXILIARY_POOL, name="Inception-v3 with its auxiliary head")
    return nn.Sequential(
        nn.AvgPool2d(*AUXILIARY_POOL),
        part(768, 128, 1),
        part(128, 768, rows, same=False),
        nn.Conv2d(768, classes, 1),
        nn.Flatten(),
    )


def _to_8(part: Part) -> Branches:
    return Branches(
        [
            nn.Sequential(part(768, 192, 1), part(192, 320, 3, 2, same=False)),
            nn.Sequential(
                part(768, 192, 1), part(192, 192, (1, 7)), part(192, 192, (7, 1)), part(192, 192, 3, 2, same=False)
            ),
            nn.MaxPool2d(3, 2),
        ]
    )


def _forked(part: Part, into: int) -> Branches:
    """Modules at 8x8, figure 7: a row and a column kernel side by side."""
    return Branches(
        [
            part(into, 320, 1),
            nn.Sequential(part(into, 384, 1), _fork(part)),
            nn.Sequential(part(into, 448, 1), part(448, 384, 3), _fork(part)),
            _pooled(part, into, 192),
        ]
    )


def _fork(part: Part) -> Branches:
    return Branches([part(384, 384, (1, 3)), part(384, 384, (3, 1))])


MODELS = {"inception3": (InceptionV3, ())}
