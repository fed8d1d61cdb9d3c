"""Networks as lists of layers with their variables: what is sent, in which order, and the FLOPs.

No weights and no torch. Variables are in the order in which the framework creates them, moving averages included,
because TensorFlow assigns variables to parameter servers by that number.

Sources: TensorFlow slim's vgg, inception_v3 and resnet_v2; tf_cnn_benchmarks for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulation.errors import ArchitectureError

Shape = tuple[int, int, int]  # height, width, channels


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: its name, its number of float32 elements, whether it has a gradient."""

    name: str
    elements: int
    trained: bool = True


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer, for one image.

    Attributes:
        kind: "conv", "pool", "fc" or "norm".
        flops: multiplications and additions of one image's forward pass.
        outputs: elements of its output for one image.
        auxiliary: belongs to a head that only training uses.
    """

    name: str
    kind: str
    variables: tuple[Variable, ...]
    flops: int
    outputs: int
    auxiliary: bool = False

    @property
    def trained(self) -> tuple[Variable, ...]:
        return tuple(v for v in self.variables if v.trained)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network: layers in the order of the forward pass."""

    name: str
    input: int
    layers: tuple[Layer, ...]

    @property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(v for layer in self.layers for v in layer.variables)

    @property
    def elements(self) -> int:
        """Number of elements of all variables with gradients."""
        return sum(v.elements for v in self.variables if v.trained)


def _windows(extent: int, kernel: int, stride: int, padding: str) -> int:
    return -(-extent // stride) if padding == "SAME" else -(-(extent - kernel + 1) // stride)


@dataclass(slots=True)
class Builder:
    """Appends layers and tracks the shape of the feature map."""

    shape: Shape
    style: str  # variables of a convolution: "norm" (slim, no scale), "scaled", "bias" or "plain"
    layers: list[Layer] = field(default_factory=list)
    auxiliary: bool = False

    def conv(
        self,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: str = "SAME",
        style: str | None = None,
    ) -> None:
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        height, width, depth = self.shape
        height, width = _windows(height, rows, stride, padding), _windows(width, columns, stride, padding)
        if height < 1 or width < 1:
            raise ArchitectureError(f"the input is too small: nothing is left of it at {name}")
        self.shape = (height, width, channels)
        weights = rows * columns * depth * channels
        variables = (Variable(f"{name}/weights", weights), *_after(name, channels, style or self.style))
        flops = 2 * weights * height * width
        self.layers.append(Layer(name, "conv", variables, flops, height * width * channels, auxiliary=self.auxiliary))

    def norm(self, name: str) -> None:
        height, width, channels = self.shape
        outputs = height * width * channels
        self.layers.append(Layer(name, "norm", _moments(name, channels, scale=True), 2 * outputs, outputs))

    def pool(self, name: str, kernel: int, stride: int, padding: str = "VALID") -> None:
        height, width, channels = self.shape
        self.shape = (_windows(height, kernel, stride, padding), _windows(width, kernel, stride, padding), channels)
        if min(self.shape) < 1:
            raise ArchitectureError(f"the input is too small: nothing is left of it at {name}")
        outputs = self.shape[0] * self.shape[1] * channels
        self.layers.append(Layer(name, "pool", (), kernel * kernel * outputs, outputs, auxiliary=self.auxiliary))

    def fc(self, name: str, outputs: int) -> None:
        inputs = self.shape[0] * self.shape[1] * self.shape[2]
        self.shape = (1, 1, outputs)
        variables = (Variable(f"{name}/weights", inputs * outputs), Variable(f"{name}/biases", outputs))
        self.layers.append(Layer(name, "fc", variables, 2 * inputs * outputs, outputs, auxiliary=self.auxiliary))

    def global_pool(self, name: str) -> None:
        self.pool(name, self.shape[0], 1)

    def branches(self, name: str, *paths: Sequence[tuple[str, Callable[[Builder, str], None]]]) -> None:
        """Append parallel branches, concatenated: each a list of (name, function that appends)."""
        start, channels = self.shape, 0
        for number, path in enumerate(paths):
            self.shape = start
            for place, (step, append) in enumerate(path, start=1):
                append(self, f"{name}/branch_{number}/{place}_{step}")
            channels += self.shape[2]
        self.shape = (self.shape[0], self.shape[1], channels)

    def finish(self, name: str, pixels: int) -> Architecture:
        return Architecture(name, pixels, tuple(self.layers))


def _moments(name: str, channels: int, scale: bool) -> tuple[Variable, ...]:
    gamma = (Variable(f"{name}/gamma", channels),) if scale else ()
    return (
        *gamma,
        Variable(f"{name}/beta", channels),
        Variable(f"{name}/moving_mean", channels, trained=False),
        Variable(f"{name}/moving_variance", channels, trained=False),
    )


def _after(name: str, channels: int, style: str) -> tuple[Variable, ...]:
    """A convolution's variables other than its weights."""
    if style == "bias":
        return (Variable(f"{name}/biases", channels),)
    if style == "plain":
        return ()
    return _moments(name, channels, scale=style == "scaled")


# ---- VGG, AlexNet, Overfeat, LeNet ---------------------------------------------------------------------------------


def _vgg(name: str, counts: tuple[int, ...], pixels: int, style: str, classes: int) -> Architecture:
    net = Builder((pixels, pixels, 3), style)
    for block, (count, channels) in enumerate(zip(counts, (64, 128, 256, 512, 512), strict=True), start=1):
        for number in range(1, count + 1):
            net.conv(f"conv{block}/conv{block}_{number}", channels, 3)
        net.pool(f"pool{block}", 2, 2)
    net.fc("fc6", 4096)
    net.fc("fc7", 4096)
    net.fc("fc8", classes)
    return net.finish(name, pixels)


def vgg11(pixels: int = 224) -> Architecture:
    return _vgg("vgg11", (1, 1, 2, 2, 2), pixels, "bias", 1001)


def vgg16(pixels: int = 224) -> Architecture:
    """slim's VGG-16, with batch normalisation; at 299 pixels fc6 alone has 169,869,312 weights."""
    return _vgg("vgg16", (2, 2, 3, 3, 3), pixels, "norm", 1000)


def vgg19(pixels: int = 224) -> Architecture:
    return _vgg("vgg19", (2, 2, 4, 4, 4), pixels, "bias", 1001)


def vgg19_22k(pixels: int = 224) -> Architecture:
    """VGG-19 for all of ImageNet's 21,841 classes."""
    return _vgg("vgg19_22k", (2, 2, 4, 4, 4), pixels, "bias", 21_841)


def alexnet(pixels: int = 227) -> Architecture:
    net = Builder((pixels, pixels, 3), "bias")
    net.conv("conv1", 64, 11, 4, "VALID")
    net.pool("pool1", 3, 2)
    net.conv("conv2", 192, 5)
    net.pool("pool2", 3, 2)
    net.conv("conv3", 384, 3)
    net.conv("conv4", 384, 3)
    net.conv("conv5", 256, 3)
    net.pool("pool5", 3, 2)
    for name, outputs in (("fc6", 4096), ("fc7", 4096), ("fc8", 1001)):
        net.fc(name, outputs)
    return net.finish("alexnet", pixels)


def overfeat(pixels: int = 231) -> Architecture:
    net = Builder((pixels, pixels, 3), "bias")
    net.conv("conv1", 96, 11, 4, "VALID")
    net.pool("pool1", 2, 2)
    net.conv("conv2", 256, 5, 1, "VALID")
    net.pool("pool2", 2, 2)
    net.conv("conv3", 512, 3)
    net.conv("conv4", 1024, 3)
    net.conv("conv5", 1024, 3)
    net.pool("pool5", 2, 2)
    for name, outputs in (("fc6", 3072), ("fc7", 4096), ("fc8", 1001)):
        net.fc(name, outputs)
    return net.finish("overfeat", pixels)


def lenet(pixels: int = 28) -> Architecture:
    net = Builder((pixels, pixels, 3), "bias")
    net.conv("conv1", 32, 5)
    net.pool("pool1", 2, 2)
    net.conv("conv2", 64, 5)
    net.pool("pool2", 2, 2)
    net.fc("fc1", 512)
    net.fc("fc2", 1001)
    return net.finish("lenet", pixels)


# ---- ResNet v2 -----------------------------------------------------------------------------------------------------


def _resnet(name: str, units: tuple[int, ...], pixels: int) -> Architecture:
    """Bottleneck units with pre-activation; as in slim the last unit of a block has the stride."""
    net = Builder((pixels, pixels, 3), "scaled")
    net.conv("conv1", 64, 7, 2, style="bias")
    net.pool("pool1", 3, 2, "SAME")
    for block, count in enumerate(units, start=1):
        depth = 64 * 2 ** (block - 1)
        for unit in range(1, count + 1):
            stride = 2 if unit == count and block < len(units) else 1
            _bottleneck(net, f"block{block}/unit_{unit}", depth, stride)
    net.norm("postnorm")
    net.global_pool("pool5")
    net.fc("logits", 1001)
    return net.finish(name, pixels)


def _bottleneck(net: Builder, name: str, depth: int, stride: int) -> None:
    net.norm(f"{name}/preact")
    start = net.shape
    if start[2] != 4 * depth:
        net.conv(f"{name}/shortcut", 4 * depth, 1, stride, style="bias")
        net.shape = start
    net.conv(f"{name}/conv1", depth, 1)
    net.conv(f"{name}/conv2", depth, 3, stride)
    net.conv(f"{name}/conv3", 4 * depth, 1, style="bias")


def resnet50(pixels: int = 224) -> Architecture:
    return _resnet("resnet50", (3, 4, 6, 3), pixels)


def resnet101(pixels: int = 224) -> Architecture:
    return _resnet("resnet101", (3, 4, 23, 3), pixels)


def resnet152(pixels: int = 224) -> Architecture:
    return _resnet("resnet152", (3, 8, 36, 3), pixels)


def resnet200(pixels: int = 224) -> Architecture:
    return _resnet("resnet200", (3, 24, 36, 3), pixels)


# ---- Inception -----------------------------------------------------------------------------------------------------

Step = tuple[str, Callable[[Builder, str], None]]


def _c(channels: int, kernel: int | tuple[int, int], stride: int = 1, padding: str = "SAME") -> Step:
    size = f"{kernel}x{kernel}" if isinstance(kernel, int) else f"{kernel[0]}x{kernel[1]}"
    return (f"conv{size}", lambda net, name: net.conv(name, channels, kernel, stride, padding))


def _avg() -> Step:
    return ("pool", lambda net, name: net.pool(name, 3, 1, "SAME"))


def _max() -> Step:
    return ("pool", lambda net, name: net.pool(name, 3, 2))


def _fork(*kernels: tuple[int, int]) -> Step:
    """Split of the 8x8 modules into a row and a column kernel, concatenated."""

    def append(net: Builder, name: str) -> None:
        net.branches(name, *[(_c(384, kernel),) for kernel in kernels])

    return ("fork", append)


def inception3(pixels: int = 299, classes: int = 1001) -> Architecture:
    """slim's Inception-v3 with the auxiliary head, whose ten variables come before the reduction from 17x17 to 8x8."""
    net = Builder((pixels, pixels, 3), "norm")
    net.conv("Conv2d_1a_3x3", 32, 3, 2, "VALID")
    net.conv("Conv2d_2a_3x3", 32, 3, 1, "VALID")
    net.conv("Conv2d_2b_3x3", 64, 3)
    net.pool("MaxPool_3a_3x3", 3, 2)
    net.conv("Conv2d_3b_1x1", 80, 1, 1, "VALID")
    net.conv("Conv2d_4a_3x3", 192, 3, 1, "VALID")
    net.pool("MaxPool_5a_3x3", 3, 2)
    for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        net.branches(
            name,
            [_c(64, 1)],
            [_c(48, 1), _c(64, 5)],
            [_c(64, 1), _c(96, 3), _c(96, 3)],
            [_avg(), _c(pooled, 1)],
        )
    net.branches("Mixed_6a", [_c(384, 3, 2, "VALID")], [_c(64, 1), _c(96, 3), _c(96, 3, 2, "VALID")], [_max()])
    for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        net.branches(
            name,
            [_c(192, 1)],
            [_c(width, 1), _c(width, (1, 7)), _c(192, (7, 1))],
            [_c(width, 1), _c(width, (7, 1)), _c(width, (1, 7)), _c(width, (7, 1)), _c(192, (1, 7))],
            [_avg(), _c(192, 1)],
        )
    _auxiliary(net, classes)
    net.branches(
        "Mixed_7a",
        [_c(192, 1), _c(320, 3, 2, "VALID")],
        [_c(192, 1), _c(192, (1, 7)), _c(192, (7, 1)), _c(192, 3, 2, "VALID")],
        [_max()],
    )
    for name in ("Mixed_7b", "Mixed_7c"):
        net.branches(
            name,
            [_c(320, 1)],
            [_c(384, 1), _fork((1, 3), (3, 1))],
            [_c(448, 1), _c(384, 3), _fork((1, 3), (3, 1))],
            [_avg(), _c(192, 1)],
        )
    net.global_pool("AvgPool_1a_8x8")
    net.fc("Logits", classes)
    return net.finish("inception3", pixels)


def _auxiliary(net: Builder, classes: int) -> None:
    trunk, net.auxiliary = net.shape, True
    net.pool("AuxLogits/AvgPool_1a_5x5", 5, 3)
    net.conv("AuxLogits/Conv2d_1b_1x1", 128, 1)
    net.conv("AuxLogits/Conv2d_2a_5x5", 768, net.shape[0], 1, "VALID")
    net.conv("AuxLogits/Conv2d_2b_1x1", classes, 1, style="bias")
    net.shape, net.auxiliary = trunk, False


def googlenet(pixels: int = 224) -> Architecture:
    net = Builder((pixels, pixels, 3), "bias")
    net.conv("conv1", 64, 7, 2)
    net.pool("pool1", 3, 2, "SAME")
    net.conv("conv2", 64, 1)
    net.conv("conv3", 192, 3)
    net.pool("pool3", 3, 2, "SAME")
    modules = (
        ("3a", 64, 96, 128, 16, 32, 32),
        ("3b", 128, 128, 192, 32, 96, 64),
        ("4a", 192, 96, 208, 16, 48, 64),
        ("4b", 160, 112, 224, 24, 64, 64),
        ("4c", 128, 128, 256, 24, 64, 64),
        ("4d", 112, 144, 288, 32, 64, 64),
        ("4e", 256, 160, 320, 32, 128, 128),
        ("5a", 256, 160, 320, 32, 128, 128),
        ("5b", 384, 192, 384, 48, 128, 128),
    )
    for name, one, narrow3, three, narrow5, five, pooled in modules:
        if name in ("4a", "5a"):
            net.pool(f"pool{name}", 3, 2, "SAME")
        net.branches(
            f"incept{name}",
            [_c(one, 1)],
            [_c(narrow3, 1), _c(three, 3)],
            [_c(narrow5, 1), _c(five, 5)],
            [("pool", lambda net, name: net.pool(name, 3, 1, "SAME")), _c(pooled, 1)],
        )
    net.global_pool("pool6")
    net.fc("fc", 1001)
    return net.finish("googlenet", pixels)


BUILDERS: dict[str, Callable[..., Architecture]] = {
    build.__name__: build
    for build in (
        alexnet,
        googlenet,
        inception3,
        lenet,
        overfeat,
        resnet50,
        resnet101,
        resnet152,
        resnet200,
        vgg11,
        vgg16,
        vgg19,
        vgg19_22k,
    )
}


def build(name: str, pixels: int | None = None) -> Architecture:
    """An architecture by name, for square images of so many pixels [its own default].

    Raises:
        ArchitectureError: no such architecture; an input too small for it.
    """
    if name not in BUILDERS:
        raise ArchitectureError(f"unknown model {name!r}; legal are {', '.join(sorted(BUILDERS))}")
    if pixels is not None and pixels < 1:
        raise ArchitectureError(f"--input must be at least 1 pixel, not {pixels}")
    return BUILDERS[name]() if pixels is None else BUILDERS[name](pixels)
