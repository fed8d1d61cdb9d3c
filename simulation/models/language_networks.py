"""Networks for text, layer by layer. No weights and no torch.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2).
"""

from __future__ import annotations

from simulation.errors import ArchitectureError
from simulation.models.layer_builder import Architecture, Layer, Variable

MOST_LAYERS = 10_000


def gpt2(
    *, context: int = 1024, classes: int = 50_257, layers: int = 12, width: int = 768, heads: int = 12
) -> Architecture:
    """GPT-2; the head shares the weights of the token embedding, whose gradient is therefore the last.

    Args:
        context: tokens of an example.
        classes: size of the vocabulary.

    Raises:
        ArchitectureError: the heads do not divide the width.
    """
    if min(layers, width, heads) < 1 or width % heads:
        raise ArchitectureError(f"layers, width and heads must be at least 1, and {heads} heads must divide {width}")
    if layers > MOST_LAYERS:
        raise ArchitectureError(f"layers must be at most {MOST_LAYERS}, not {layers}")
    values = context * width
    made = [
        Layer("tokens", "embedding", (Variable("tokens/weights", classes * width),), 0, values),
        Layer("places", "embedding", (Variable("places/weights", values),), 0, values),
    ]

    def norm(name: str) -> None:
        variables = (Variable(f"{name}/gamma", width), Variable(f"{name}/beta", width))
        made.append(Layer(name, "norm", variables, 2 * values, values))

    def linear(name: str, inputs: int, outputs: int) -> None:
        variables = (Variable(f"{name}/weights", inputs * outputs), Variable(f"{name}/biases", outputs))
        flops = 2 * inputs * outputs * context
        made.append(Layer(name, "fc", variables, flops, outputs * context, matrix=(outputs, inputs)))

    for number in range(1, layers + 1):
        block = f"block{number}"
        norm(f"{block}/norm1")
        linear(f"{block}/attention/into", width, 3 * width)
        # Every query times every key, then their weights times the values; the mask saves nothing.
        made.append(Layer(f"{block}/attention/product", "attention", (), 4 * context * values, values))
        linear(f"{block}/attention/out", width, width)
        norm(f"{block}/norm2")
        linear(f"{block}/inner1", width, 4 * width)
        linear(f"{block}/inner2", 4 * width, width)
    norm("norm")
    made.append(Layer("head", "fc", (), 2 * classes * values, classes * context))
    return Architecture("gpt2", (context,), tuple(made))
