"""Layers of a network with their variables: what is sent, in which order, and the FLOPs. No weights and no torch.

Variables are in the order in which the framework creates them, moving averages included, because TensorFlow assigns
variables to parameter servers by that number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

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
        kept: elements that the backward pass of one example needs of it: its output where a later operation or the next
            layer needs that, and what its normalisation, activation and pool keep. None if unknown.
        crossing, borrowed: as LayerInfo's.
    """

    name: str
    kind: str
    variables: tuple[Variable, ...]
    flops: int
    outputs: int
    auxiliary: bool = False
    matrix: tuple[int, int] | None = None
    kept: int | None = None
    crossing: int | None = None
    borrowed: tuple[str, ...] = ()

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
        kept: int | None = None,
    ) -> None:
        """Append a convolution with its normalisation and activation.

        Args:
            kept: tensors of its output's size that the backward pass needs [the normalisation's input, if there is one,
                and the activation's result].
        """
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        height, width, depth = self.shape
        height, width = _windows(height, rows, stride, padding), _windows(width, columns, stride, padding)
        if height < 1 or width < 1:
            raise ArchitectureError(f"the input is too small: nothing is left of it at {name}")
        self.shape = (height, width, channels)
        weights = rows * columns * (depth // groups) * channels
        variables = (Variable(f"{name}/weights", weights), *_after(name, channels, style or self.style))
        flops = 2 * weights * height * width
        style, outputs = style or self.style, height * width * channels
        copies = (1 if style == "bias" else 2) if kept is None else kept
        self.layers.append(
            Layer(name, "conv", variables, flops, outputs, auxiliary=self.auxiliary, kept=copies * outputs)
        )

    def norm(self, name: str) -> None:
        """Append a normalisation of the network's style, if it has any."""
        if self.style == "bias":
            return
        height, width, channels = self.shape
        outputs = height * width * channels
        variables = _after(name, channels, self.style)
        self.layers.append(Layer(name, "batch norm", variables, 2 * outputs, outputs, kept=2 * outputs))

    def pool(self, name: str, kernel: int, stride: int, padding: str = "VALID", average: bool = False) -> None:
        height, width, channels = self.shape
        self.shape = (_windows(height, kernel, stride, padding), _windows(width, kernel, stride, padding), channels)
        if min(self.shape) < 1:
            raise ArchitectureError(f"the input is too small: nothing is left of it at {name}")
        outputs = self.shape[0] * self.shape[1] * channels
        kept = outputs if average else 3 * outputs  # the maxima's places have 8 bytes each
        flops = kernel * kernel * outputs
        self.layers.append(Layer(name, "pool", (), flops, outputs, auxiliary=self.auxiliary, kept=kept))

    def fc(self, name: str, outputs: int) -> None:
        inputs = self.shape[0] * self.shape[1] * self.shape[2]
        self.shape = (1, 1, outputs)
        variables = (Variable(f"{name}/weights", inputs * outputs), Variable(f"{name}/biases", outputs))
        self.layers.append(
            Layer(
                name,
                "fc",
                variables,
                2 * inputs * outputs,
                outputs,
                self.auxiliary,
                matrix=(outputs, inputs),
                kept=outputs,
            )
        )

    def adaptive_pool(self, name: str, extent: int) -> None:
        """Average to a map of `extent` x `extent`; windows cover each element about once."""
        height, width, channels = self.shape
        self.shape = (extent, extent, channels)
        self.layers.append(
            Layer(
                name, "pool", (), height * width * channels, extent * extent * channels, kept=extent * extent * channels
            )
        )

    def global_pool(self, name: str) -> None:
        self.pool(name, self.shape[0], 1, average=True)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Append a block with a residual connection or branches; one tensor, of its last shape, goes on behind it."""
        first = len(self.layers)
        yield
        inner, last = self.layers[first:-1], self.layers[-1]
        height, width, channels = self.shape
        self.layers[first:] = [
            *(replace(layer, crossing=0) for layer in inner),
            replace(last, crossing=height * width * channels),
        ]

    def branches(self, name: str, *paths: Sequence[tuple[str, Callable[[Builder, str], None]]]) -> None:
        """Append parallel branches, concatenated: each a list of (name, function that appends)."""
        start, channels = self.shape, 0
        with self.block():
            for number, path in enumerate(paths):
                self.shape = start
                for place, (step, append) in enumerate(path, start=1):
                    append(self, f"{name}/branch_{number}/{place}_{step}")
                channels += self.shape[2]
                last = self.layers[-1]
                if last.kind == "conv" and last.kept is not None:  # concatenation copies it
                    self.layers[-1] = replace(last, kept=last.kept + last.outputs)
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
