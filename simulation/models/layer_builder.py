"""Layers of a network with their variables: what is sent, in which order, and the FLOPs. No weights and no torch.

Variables are in the order in which the framework creates them, moving averages included, because TensorFlow assigns
variables to parameter servers by that number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulation.errors import ArchitectureError

Shape = tuple[int, int, int]  # height, width, channels


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: its name, its number of elements, whether it has a gradient, and the bytes of an element."""

    name: str
    elements: int
    trained: bool = True
    element_bytes: int = 4

    @property
    def bytes(self) -> int:
        return self.elements * self.element_bytes


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer, for one example.

    Attributes:
        kind: as LayerInfo's; or "batch norm", which belongs to the layer before it.
        flops: multiplications and additions of one example's forward pass.
        outputs: elements of its output for one example.
        auxiliary: belongs to a head that only training uses.
        matrix: (outputs M, inputs N) of a fully connected layer's weights, if no other layer uses them.
    """

    name: str
    kind: str
    variables: tuple[Variable, ...]
    flops: int
    outputs: int
    auxiliary: bool = False
    matrix: tuple[int, int] | None = None

    @property
    def trained(self) -> tuple[Variable, ...]:
        return tuple(v for v in self.variables if v.trained)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network.

    Attributes:
        input: shape of one example.
        layers: in the order of the forward pass.
    """

    name: str
    input: tuple[int, ...]
    layers: tuple[Layer, ...]

    @property
    def flops(self) -> int:
        """Multiplications and additions of one example's forward pass."""
        return sum(layer.flops for layer in self.layers)

    @property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(v for layer in self.layers for v in layer.variables)

    @property
    def elements(self) -> int:
        """Number of elements of all variables with gradients."""
        return sum(v.elements for v in self.variables if v.trained)


def _windows(extent: int, kernel: int, stride: int, padding: str) -> int:
    if padding == "CEIL":  # no padding, but a last window that is not full counts
        return -(-max(extent - kernel, 0) // stride) + 1
    return -(-extent // stride) if padding == "SAME" else -(-(extent - kernel + 1) // stride)


def convolution_style(norm: str | None, usual: str, scale: bool = True) -> str:
    """Variables of a network's convolutions, by its option `norm`; None for the network's usual ones."""
    styles = {"batch": "scaled" if scale else "norm", "group": "group" if scale else "shift", "none": "bias"}
    return usual if norm is None else styles[norm]


@dataclass(slots=True)
class Builder:
    """Appends layers and tracks the shape of the feature map."""

    shape: Shape
    # Variables of a convolution: "norm" (slim, no scale), "scaled", "group" and "shift" (both without moving averages),
    # "bias" or "plain".
    style: str
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
        groups: int = 1,
    ) -> None:
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        height, width, depth = self.shape
        height, width = _windows(height, rows, stride, padding), _windows(width, columns, stride, padding)
        if height < 1 or width < 1:
            raise ArchitectureError(f"the input is too small: nothing is left of it at {name}")
        self.shape = (height, width, channels)
        weights = rows * columns * (depth // groups) * channels
        variables = (Variable(f"{name}/weights", weights), *_after(name, channels, style or self.style))
        flops = 2 * weights * height * width
        self.layers.append(Layer(name, "conv", variables, flops, height * width * channels, auxiliary=self.auxiliary))

    def norm(self, name: str) -> None:
        """Append a normalisation of the network's style, if it has any."""
        if self.style == "bias":
            return
        height, width, channels = self.shape
        outputs = height * width * channels
        self.layers.append(Layer(name, "batch norm", _after(name, channels, self.style), 2 * outputs, outputs))

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
        self.layers.append(
            Layer(name, "fc", variables, 2 * inputs * outputs, outputs, self.auxiliary, matrix=(outputs, inputs))
        )

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

    def finish(self, name: str, pixels: int, channels: int = 3) -> Architecture:
        return Architecture(name, (channels, pixels, pixels), tuple(self.layers))


def _after(name: str, channels: int, style: str) -> tuple[Variable, ...]:
    """A convolution's variables other than its weights."""
    if style == "bias":
        return (Variable(f"{name}/biases", channels),)
    if style == "plain":
        return ()
    gamma = (Variable(f"{name}/gamma", channels),) if style in ("scaled", "group") else ()
    beta = Variable(f"{name}/beta", channels)
    if style in ("group", "shift"):
        return (*gamma, beta)
    moving = (Variable(f"{name}/moving_{what}", channels, trained=False) for what in ("mean", "variance"))
    return (*gamma, beta, *moving)
