"""The networks' names, with the papers' input shapes and classes. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import UnknownNameError

IMAGE_NET = 1000
TF_IMAGE_NET = 1001  # tf_cnn_benchmarks and slim have one more class, for the background
TENSORFLOW = "TensorFlow's, as in RALP"
SLIM = "slim's, as in Network Operator Edition"


@dataclass(frozen=True, slots=True)
class Entry:
    """A network.

    Attributes:
        family: the module of hostlib.models.zoo that builds it.
        input: shape of one example: channels, height and width of an image, or a number of tokens.
        classes: number of classes; a language model's vocabulary.
        source: the paper that describes it, and the version whose sizes are used.
    """

    name: str
    family: str
    input: tuple[int, ...]
    classes: int
    source: str


ENTRIES = {
    entry.name: entry
    for entry in (
        Entry("alexnet", "alexnet", (3, 227, 227), TF_IMAGE_NET, f"Krizhevsky 2014; {TENSORFLOW}"),
        Entry("cifar10_quick", "lenet", (3, 32, 32), 10, "Caffe's, as in Poseidon"),
        Entry("googlenet", "googlenet", (3, 224, 224), TF_IMAGE_NET, f"Szegedy et al. 2014; {TENSORFLOW}"),
        Entry("gpt2", "gpt", (1024,), 50257, "Radford et al. 2019, its smallest"),
        Entry("inception3", "inception", (3, 299, 299), TF_IMAGE_NET, f"Szegedy et al. 2015; {SLIM}"),
        Entry("lenet", "lenet", (3, 28, 28), TF_IMAGE_NET, f"LeCun et al. 1998; {TENSORFLOW}"),
        Entry("mobilenet2", "mobilenet", (3, 224, 224), IMAGE_NET, "Sandler et al. 2018, as in the recommender thesis"),
        Entry("overfeat", "alexnet", (3, 231, 231), TF_IMAGE_NET, f"Sermanet et al. 2013; {TENSORFLOW}"),
        Entry("resnet18", "resnet", (3, 224, 224), IMAGE_NET, "He et al. 2015, as in the recommender thesis"),
        Entry("resnet50", "resnet", (3, 224, 224), TF_IMAGE_NET, f"He et al. 2016; {SLIM}"),
        Entry("resnet101", "resnet", (3, 224, 224), TF_IMAGE_NET, f"He et al. 2016; {SLIM}"),
        Entry("resnet152", "resnet", (3, 224, 224), TF_IMAGE_NET, f"He et al. 2016; {SLIM}"),
        Entry("resnet200", "resnet", (3, 224, 224), TF_IMAGE_NET, f"He et al. 2016; {SLIM}"),
        Entry("vgg11", "vgg", (3, 224, 224), TF_IMAGE_NET, f"Simonyan and Zisserman 2014; {TENSORFLOW}"),
        Entry("vgg16", "vgg", (3, 224, 224), IMAGE_NET, f"Simonyan and Zisserman 2014; {SLIM}"),
        Entry("vgg19", "vgg", (3, 224, 224), TF_IMAGE_NET, f"Simonyan and Zisserman 2014; {TENSORFLOW}"),
        Entry("vgg19_22k", "vgg", (3, 224, 224), 21841, "Simonyan and Zisserman 2014; Poseidon's, for ImageNet22K"),
    )
}
NAMES: tuple[str, ...] = tuple(ENTRIES)

FACTORY = "MODULE:FACTORY"

# hostlib.models.small has them: versions for images of 8x8 pixels, which the digits are.
SMALL: tuple[str, ...] = ("lenet", "resnet18", "vgg")
SMALL_INPUT = (1, 8, 8)


def is_factory(text: str) -> bool:
    """Whether a text is a `package.module:factory`, not a network with its options."""
    plain, colon, _ = text.partition(":")
    return bool(colon) and plain not in ENTRIES


def require_known(text: str) -> None:
    """Check a model's name; a factory may still not exist.

    Raises:
        UnknownNameError: it is neither a network nor a factory.
    """
    if not is_factory(text) and text.partition(":")[0] not in (*NAMES, *SMALL):
        raise UnknownNameError("model", text, {*NAMES, *SMALL, FACTORY})
