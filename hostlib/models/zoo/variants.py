"""Versions of ResNet, VGG and MobileNetV2 for the data sets of the recommender thesis. Torch-free.

Source: "Benchmarking and recommender for distributed training", appendix A, tables A.2 to A.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VariantName = Literal["usual", "mnist", "cifar10", "imagenet", "highres"]
USUAL: VariantName = "usual"  # the network as catalogue.ENTRIES has it
POOLED = 7  # extent of VGG's map before its three fully connected layers


@dataclass(frozen=True, slots=True)
class Variant:
    """A data set's version of the networks.

    Attributes:
        input: channels, height and width of an image.
        small: images are small: the stem keeps their size, MobileNetV2's first stages too, and VGG has one fully
            connected layer.
    """

    input: tuple[int, int, int]
    classes: int
    small: bool

    @property
    def sizes(self) -> dict[str, int]:
        """The options of a network that the variant determines."""
        return {"channels": self.input[0], "pixels": self.input[-1], "classes": self.classes}


VARIANTS: dict[str, Variant] = {
    "mnist": Variant((1, 28, 28), 10, small=True),
    "cifar10": Variant((3, 32, 32), 10, small=True),
    "imagenet": Variant((3, 224, 224), 1000, small=False),
    "highres": Variant((3, 512, 512), 1000, small=False),
}


def is_small(variant: VariantName) -> bool:
    """Whether a variant is for small images."""
    return variant != USUAL and VARIANTS[variant].small
