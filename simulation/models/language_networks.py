"""Networks for text, layer by layer. No weights and no torch.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2).
"""

from __future__ import annotations

from dataclasses import replace

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
        Layer("tokens", "embedding", (Variable("tokens/weights", classes * width),), 0, values, crossing=0, kept=0),
        Layer("places", "embedding", (Variable("places/weights", values),), 0, values, kept=0),
    ]

    def norm(name: str) -> None:
        variables = (Variable(f"{name}/gamma", width), Variable(f"{name}/beta", width))
        # Its input, which the additions before it do not keep, its result, and each token's mean and deviation.
        made.append(Layer(name, "norm", variables, 2 * values, values, kept=2 * (values + context)))

    def linear(name: str, inputs: int, outputs: int, kept: int) -> None:
        """Append a fully connected layer that keeps its output so many times: for what follows, and what that makes."""
        variables = (Variable(f"{name}/weights", inputs * outputs), Variable(f"{name}/biases", outputs))
        flops = 2 * inputs * outputs * context
        values = outputs * context
        made.append(Layer(name, "fc", variables, flops, values, matrix=(outputs, inputs), kept=kept * values))

    for number in range(1, layers + 1):
        block = f"block{number}"
        norm(f"{block}/norm1")
        linear(f"{block}/attention/into", width, 3 * width, 1)
        # Every query times every key, then their weights times the values; the mask saves nothing.
        kept = values + heads * context  # and each row's sum of exponentials
        made.append(Layer(f"{block}/attention/product", "attention", (), 4 * context * values, values, kept=kept))
        linear(f"{block}/attention/out", width, width, 0)
        norm(f"{block}/norm2")
        linear(f"{block}/inner1", width, 4 * width, 2)  # GELU keeps its input
        linear(f"{block}/inner2", 4 * width, width, 0)
        # The residual connections pass by all of a block's layers but the two whose outputs are added to them.
        ends = {f"{block}/attention/out", f"{block}/inner2"}
        made[-7:] = [replace(layer, crossing=values if layer.name in ends else 0) for layer in made[-7:]]
    norm("norm")
    made.append(
        Layer(
            "head",
            "fc",
            (),
            2 * classes * values,
            classes * context,
            kept=classes * context,
            borrowed=("tokens/weights",),
        )
    )
    return Architecture("gpt2", (context,), tuple(made))
