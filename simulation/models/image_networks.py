"""Networks for images, layer by layer. No weights and no torch.

Each function takes the options that the network of hostlib's zoo takes. Without `norm`, convolutions have the variables of
the implementation that the papers traced.

Sources: TensorFlow slim's vgg, inception_v3 and resnet_v2; tf_cnn_benchmarks for the others; He et al. 2015 (ResNet,
version 1); Caffe (CIFAR-10 quick); Sandler et al. 2018 (MobileNetV2). Variants: hostlib.models.zoo.variants.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Literal

from hostlib.models.zoo.variants import POOLED, USUAL, VariantName, is_small
from simulation.errors import ArchitectureError
from simulation.models.layer_builder import Architecture, Builder, convolution_style

Norm = Literal["batch", "group", "none"]


# ---- VGG, AlexNet, Overfeat, small networks ------------------------------------------------------------------------


def _vgg(
    name: str,
    counts: tuple[int, ...],
    usual: str,
    default_classes: int,
    *,
    pixels: int = 224,
    classes: int | None = None,
    channels: int = 3,
    norm: Norm | None = None,
    variant: VariantName = USUAL,
) -> Architecture:
    small = is_small(variant)
    if variant != USUAL:
        usual = "scaled" if small else "bias"
    net = Builder((pixels, pixels, channels), convolution_style(norm, usual))
    for block, (count, width) in enumerate(zip(counts, (64, 128, 256, 512, 512), strict=True), start=1):
        for number in range(1, count + 1):
            net.conv(f"conv{block}/conv{block}_{number}", width, 3)
        if not small or net.shape[0] > 1:
            net.pool(f"pool{block}", 2, 2)
    if variant != USUAL:
        net.adaptive_pool("pool6", 1 if small else POOLED)
    if not small:
        net.fc("fc6", 4096)
        net.fc("fc7", 4096)
    net.fc("fc8", default_classes if classes is None else classes)
    return net.finish(name, pixels, channels)


vgg11 = partial(_vgg, "vgg11", (1, 1, 2, 2, 2), "bias", 1001)
# slim's VGG-16, with batch normalisation; at 299 pixels fc6 alone has 169,869,312 weights.
vgg16 = partial(_vgg, "vgg16", (2, 2, 3, 3, 3), "norm", 1000)
vgg19 = partial(_vgg, "vgg19", (2, 2, 4, 4, 4), "bias", 1001)
vgg19_22k = partial(_vgg, "vgg19_22k", (2, 2, 4, 4, 4), "bias", 21_841)  # all of ImageNet's classes


def alexnet(*, pixels: int = 227, classes: int = 1001, channels: int = 3, norm: Norm | None = None) -> Architecture:
    net = Builder((pixels, pixels, channels), convolution_style(norm, "bias"))
    net.conv("conv1", 64, 11, 4, "VALID")
    net.pool("pool1", 3, 2)
    net.conv("conv2", 192, 5)
    net.pool("pool2", 3, 2)
    net.conv("conv3", 384, 3)
    net.conv("conv4", 384, 3)
    net.conv("conv5", 256, 3)
    net.pool("pool5", 3, 2)
    for name, outputs in (("fc6", 4096), ("fc7", 4096), ("fc8", classes)):
        net.fc(name, outputs)
    return net.finish("alexnet", pixels, channels)


def overfeat(*, pixels: int = 231, classes: int = 1001, channels: int = 3, norm: Norm | None = None) -> Architecture:
    net = Builder((pixels, pixels, channels), convolution_style(norm, "bias"))
    net.conv("conv1", 96, 11, 4, "VALID")
    net.pool("pool1", 2, 2)
    net.conv("conv2", 256, 5, 1, "VALID")
    net.pool("pool2", 2, 2)
    net.conv("conv3", 512, 3)
    net.conv("conv4", 1024, 3)
    net.conv("conv5", 1024, 3)
    net.pool("pool5", 2, 2)
    for name, outputs in (("fc6", 3072), ("fc7", 4096), ("fc8", classes)):
        net.fc(name, outputs)
    return net.finish("overfeat", pixels, channels)


def lenet(*, pixels: int = 28, classes: int = 1001, channels: int = 3, norm: Norm | None = None) -> Architecture:
    net = Builder((pixels, pixels, channels), convolution_style(norm, "bias"))
    net.conv("conv1", 32, 5)
    net.pool("pool1", 2, 2)
    net.conv("conv2", 64, 5)
    net.pool("pool2", 2, 2)
    net.fc("fc1", 512)
    net.fc("fc2", classes)
    return net.finish("lenet", pixels, channels)


def cifar10_quick(*, pixels: int = 32, classes: int = 10, channels: int = 3, norm: Norm | None = None) -> Architecture:
    """Caffe rounds up when it pools."""
    net = Builder((pixels, pixels, channels), convolution_style(norm, "bias"))
    net.conv("conv1", 32, 5, style="bias")
    net.pool("pool1", 3, 2, "CEIL")
    net.conv("conv2", 32, 5)
    net.pool("pool2", 3, 2, "CEIL", average=True)
    net.conv("conv3", 64, 5)
    net.pool("pool3", 3, 2, "CEIL", average=True)
    net.fc("ip1", 64)
    net.fc("ip2", classes)
    return net.finish("cifar10_quick", pixels, channels)


# ---- ResNet --------------------------------------------------------------------------------------------------------


def _resnet(
    name: str,
    units: tuple[int, ...],
    *,
    pixels: int = 224,
    classes: int = 1001,
    channels: int = 3,
    norm: Norm | None = None,
    version: int = 0,
    variant: VariantName = USUAL,
) -> Architecture:
    """Bottleneck units; with pre-activation (version 2) the last unit of a block has the stride, as in slim.

    Args:
        version: 0 for the usual: 2, but 1 of a variant.
    """
    if variant != USUAL and version not in (0, 1):
        raise ArchitectureError(f"version of this ResNet must be 1, not {version}")
    if version == 1 or variant != USUAL:
        return _resnet1(name, units, 3, pixels, classes, channels, norm, is_small(variant))
    if version not in (0, 2):
        raise ArchitectureError(f"version of this ResNet must be 1 or 2, not {version}")
    net = Builder((pixels, pixels, channels), convolution_style(norm, "scaled"))
    net.conv("conv1", 64, 7, 2, style="bias")
    net.pool("pool1", 3, 2, "SAME")
    for block, count in enumerate(units, start=1):
        depth = 64 * 2 ** (block - 1)
        for unit in range(1, count + 1):
            stride = 2 if unit == count and block < len(units) else 1
            with net.block():
                _pre_activated(net, f"block{block}/unit_{unit}", depth, stride)
    net.norm("postnorm")
    net.global_pool("pool5")
    net.fc("logits", classes)
    return net.finish(name, pixels, channels)


def _pre_activated(net: Builder, name: str, depth: int, stride: int) -> None:
    net.norm(f"{name}/preact")
    start = net.shape
    if start[2] != 4 * depth:
        net.conv(f"{name}/shortcut", 4 * depth, 1, stride, style="bias", kept=0)  # the next unit keeps the sum
        net.shape = start
    net.conv(f"{name}/conv1", depth, 1)
    net.conv(f"{name}/conv2", depth, 3, stride)
    net.conv(f"{name}/conv3", 4 * depth, 1, style="bias", kept=0)


def _resnet1(
    name: str,
    units: tuple[int, ...],
    depths: int,
    pixels: int,
    classes: int,
    channels: int,
    norm: Norm | None,
    small: bool,
) -> Architecture:
    """Version 1: convolutions before their normalisation; the first unit of a block has the stride.

    Args:
        depths: convolutions of a unit: 2, or 3 of a bottleneck.
        small: a variant for small images.
    """
    net = Builder((pixels, pixels, channels), convolution_style(norm, "scaled"))
    if small:
        net.conv("conv1", 64, 3)
    else:
        net.conv("conv1", 64, 7, 2)
        net.pool("pool1", 3, 2, "SAME")
    for block, count in enumerate(units, start=1):
        depth = 64 * 2 ** (block - 1)
        width = depth if depths == 2 else 4 * depth
        for unit in range(1, count + 1):
            stride = 2 if unit == 1 and block > 1 else 1
            with net.block():
                _unit(net, f"block{block}/unit_{unit}", depth, width, stride)
    net.global_pool("pool5")
    net.fc("logits", classes)
    return net.finish(name, pixels, channels)


def _unit(net: Builder, name: str, depth: int, width: int, stride: int) -> None:
    start = net.shape
    if stride != 1 or start[2] != width:
        # The addition keeps nothing; the normalisation keeps the convolution's output.
        net.conv(f"{name}/shortcut", width, 1, stride, kept=0 if net.style == "bias" else 1)
        net.shape = start
    if depth == width:
        net.conv(f"{name}/conv1", depth, 3, stride)
        net.conv(f"{name}/conv2", depth, 3)
    else:
        net.conv(f"{name}/conv1", depth, 1)
        net.conv(f"{name}/conv2", depth, 3, stride)
        net.conv(f"{name}/conv3", width, 1)


def resnet18(
    *,
    pixels: int = 224,
    classes: int = 1000,
    channels: int = 3,
    norm: Norm | None = None,
    version: int = 1,
    variant: VariantName = USUAL,
) -> Architecture:
    if version not in (0, 1):
        raise ArchitectureError(f"version of this ResNet must be 1, not {version}")
    return _resnet1("resnet18", (2, 2, 2, 2), 2, pixels, classes, channels, norm, is_small(variant))


resnet50 = partial(_resnet, "resnet50", (3, 4, 6, 3))
resnet101 = partial(_resnet, "resnet101", (3, 4, 23, 3))
resnet152 = partial(_resnet, "resnet152", (3, 8, 36, 3))
resnet200 = partial(_resnet, "resnet200", (3, 24, 36, 3))


# ---- Inception -----------------------------------------------------------------------------------------------------

Step = tuple[str, Callable[[Builder, str], None]]


def _c(channels: int, kernel: int | tuple[int, int], stride: int = 1, padding: str = "SAME") -> Step:
    size = f"{kernel}x{kernel}" if isinstance(kernel, int) else f"{kernel[0]}x{kernel[1]}"
    return (f"conv{size}", lambda net, name: net.conv(name, channels, kernel, stride, padding))


def _avg() -> Step:
    return ("pool", lambda net, name: net.pool(name, 3, 1, "SAME", average=True))


def _max() -> Step:
    return ("pool", lambda net, name: net.pool(name, 3, 2))


def _fork(*kernels: tuple[int, int]) -> Step:
    """Split of the 8x8 modules into a row and a column kernel, concatenated."""

    def append(net: Builder, name: str) -> None:
        net.branches(name, *[(_c(384, kernel),) for kernel in kernels])

    return ("fork", append)


def inception3(
    *,
    pixels: int = 299,
    classes: int = 1001,
    channels: int = 3,
    norm: Norm | None = None,
    auxiliary: bool | None = None,
) -> Architecture:
    """slim's Inception-v3. The auxiliary head's ten variables come before the reduction from 17x17 to 8x8.

    Args:
        auxiliary: with the auxiliary head as a part of the network. None: it computes and is numbered, but not sent, as
            in the paper's traces.
    """
    net = Builder((pixels, pixels, channels), convolution_style(norm, "norm", scale=False))
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
    if auxiliary is not False:
        _auxiliary_head(net, classes, sent=auxiliary is True)
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
    return net.finish("inception3", pixels, channels)


def _auxiliary_head(net: Builder, classes: int, sent: bool) -> None:
    trunk, net.auxiliary = net.shape, not sent
    with net.block():
        net.pool("AuxLogits/AvgPool_1a_5x5", 5, 3, average=True)
        net.conv("AuxLogits/Conv2d_1b_1x1", 128, 1)
        net.conv("AuxLogits/Conv2d_2a_5x5", 768, net.shape[0], 1, "VALID")
        net.conv("AuxLogits/Conv2d_2b_1x1", classes, 1, style="bias")
        net.shape, net.auxiliary = trunk, False


def googlenet(*, pixels: int = 224, classes: int = 1001, channels: int = 3, norm: Norm | None = None) -> Architecture:
    net = Builder((pixels, pixels, channels), convolution_style(norm, "bias"))
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
    net.fc("fc", classes)
    return net.finish("googlenet", pixels, channels)


# ---- MobileNetV2 ---------------------------------------------------------------------------------------------------

# Expansion, channels, repetitions, stride of the first.
INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
UNSTRIDED = 2  # the block that keeps the size of small images


def mobilenet2(
    *,
    pixels: int = 224,
    classes: int = 1000,
    channels: int = 3,
    norm: Norm | None = None,
    variant: VariantName = USUAL,
) -> Architecture:
    small = is_small(variant)
    net = Builder((pixels, pixels, channels), convolution_style(norm, "scaled"))
    clipped = 2 if net.style == "bias" else 3  # ReLU6 keeps its input, and the next convolution its result
    net.conv("conv1", 32, 3, 1 if small else 2, kept=clipped)
    for block, (expansion, width, count, usual_stride) in enumerate(INVERTED, start=1):
        first_stride = 1 if small and block == UNSTRIDED else usual_stride
        for unit in range(1, count + 1):
            here, wide = f"block{block}/unit_{unit}", expansion * net.shape[2]
            stride = first_stride if unit == 1 else 1
            residual = stride == 1 and net.shape[2] == width
            with net.block() if residual else nullcontext():
                if expansion > 1:
                    net.conv(f"{here}/expand", wide, 1, kept=clipped)
                net.conv(f"{here}/depthwise", wide, 3, stride, groups=wide, kept=clipped)
                net.conv(f"{here}/project", width, 1)
    net.conv("conv2", 1280, 1, kept=clipped - 1)  # an average needs no values
    net.global_pool("pool")
    net.fc("logits", classes)
    return net.finish("mobilenet2", pixels, channels)
