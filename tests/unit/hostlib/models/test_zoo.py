"""The zoo's networks: sizes as published, layer by layer as the simulator's descriptions, and they learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hostlib.errors import HostlibError, UnknownNameError
from hostlib.models import zoo
from hostlib.models.inspection import load
from hostlib.models.zoo.variants import VARIANTS
from simulation.models.architectures import BUILDERS, options_of
from simulation.models.architectures import build as describe
from simulation.models.compute import Compute
from simulation.models.described_model import layers_of
from simulation.models.synthetic_trace import trained_model

PUBLISHED = {
    # Poseidon, table 3; Inception-v3's 27 million include the auxiliary head.
    "cifar10_quick": (145.6e3, 1e-3),
    "inception3:auxiliary=yes": (27e6, 1e-2),
    "resnet152": (60.2e6, 1e-3),
    "vgg19": (143e6, 1e-2),
    "vgg19_22k": (229e6, 1e-3),
    # "Poseidon", section 2.2, and CGDP, table 1.
    "alexnet": (61.5e6, 1e-2),
    "googlenet": (7e6, 1e-2),
    "vgg16": (138e6, 1e-2),
    # He et al. 2015; Sandler et al. 2018, table 4; Radford et al. 2019's code.
    "resnet18": (11.7e6, 1e-2),
    "mobilenet2": (3.4e6, 5e-2),
    "gpt2": (124e6, 1e-2),
}

# Of the recommender thesis's appendix A, by hand. Those for ImageNet are PyTorch's own counts (torchvision), those for
# CIFAR-10 pytorch-cifar's, less the biases before VGG's normalisations (2,752 and 4,224), and less MobileNetV2's shortcut
# convolutions, which table A.1 does not have. MNIST's first convolution has two channels less.
OF_VARIANTS = {
    "imagenet": (11_689_512, 25_557_032, 60_192_808, 132_863_336, 138_357_544, 3_504_872),
    "cifar10": (
        11_173_962,
        23_520_842,
        58_156_618,
        9_231_114 - 2_752,
        14_728_266 - 4_224,
        3_504_872 - 1_281_000 + 12_810,
    ),
}
OF_VARIANTS["highres"] = OF_VARIANTS["imagenet"]
OF_VARIANTS["mnist"] = tuple(
    count - 2 * 9 * width for count, width in zip(OF_VARIANTS["cifar10"], (64, 64, 64, 64, 64, 32), strict=True)
)
NETWORKS = ("resnet18", "resnet50", "resnet152", "vgg11", "vgg16", "mobilenet2")

# Width of the map after each of the tables' rows, down to the last convolution.
MAPS = {
    "mnist": {"resnet50": (28, 28, 14, 7, 4), "vgg16": (28, 14, 7, 3, 1), "mobilenet2": (28, 28, 28, 14, 7, 7, 4, 4)},
    "cifar10": {"resnet50": (32, 32, 16, 8, 4), "vgg16": (32, 16, 8, 4, 2), "mobilenet2": (32, 32, 32, 16, 8, 8, 4, 4)},
    "imagenet": {
        "resnet50": (112, 56, 28, 14, 7),
        "vgg16": (224, 112, 56, 28, 14),
        "mobilenet2": (112, 112, 56, 28, 14, 14, 7, 7),
    },
    "highres": {
        "resnet50": (256, 128, 64, 32, 16),
        "vgg16": (512, 256, 128, 64, 32),
        "mobilenet2": (256, 256, 128, 64, 32, 32, 16, 16),
    },
}

# Small enough for a forward and backward pass within a second.
SMALL = {
    "alexnet": "alexnet:pixels=67:classes=5",
    "cifar10_quick": "cifar10_quick",
    "googlenet": "googlenet:pixels=32:classes=5",
    "gpt2": "gpt2:classes=50:context=8:layers=2:width=32:heads=4",
    "inception3": "inception3:pixels=107:classes=5:auxiliary=yes",
    "lenet": "lenet:classes=5",
    "mobilenet2": "mobilenet2:pixels=32:classes=5",
    "overfeat": "overfeat:pixels=71:classes=5",
    "resnet18": "resnet18:pixels=32:classes=5",
    "resnet50": "resnet50:pixels=32:classes=5",
    "vgg11": "vgg11:pixels=32:classes=5",
    "vgg16 of MNIST": "vgg16:variant=mnist",
    "mobilenet2 of MNIST": "mobilenet2:variant=mnist",
    "resnet50 of CIFAR-10": "resnet50:variant=cifar10",
}


@pytest.mark.parametrize(("name", "size"), PUBLISHED.items())
def test_sizes_are_those_of_the_papers(name: str, size: tuple[float, float]) -> None:
    published, tolerance = size
    assert load(name).params == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize("data", OF_VARIANTS)
def test_variants_have_the_parameters_counted_by_hand(data: str) -> None:
    assert tuple(describe(f"{name}:variant={data}").elements for name in NETWORKS) == OF_VARIANTS[data]


@pytest.mark.parametrize("data", MAPS)
def test_variants_have_the_maps_of_the_thesis_tables(data: str) -> None:
    for name, widths in MAPS[data].items():
        described = describe(f"{name}:variant={data}")
        assert described.input == VARIANTS[data].input
        rows: dict[str, tuple[int, int]] = {}  # outputs and channels of a row's last convolution
        for layer in described.layers:
            if layer.kind == "conv":
                rows[layer.name.split("/")[0]] = layer.outputs, layer.variables[-1].elements
        found = [round((outputs / channels) ** 0.5) for outputs, channels in rows.values()]
        assert tuple(found[: len(widths)]) == widths, name


def test_a_variants_sizes_may_be_changed_but_not_its_version() -> None:
    assert zoo.build("vgg11", variant="mnist", pixels=32, channels=3).input_shape == (3, 32, 32)
    for error, wrong in (
        (UnknownNameError, "resnet18:variant=svhn"),
        (UnknownNameError, "alexnet:variant=mnist"),
        (HostlibError, "resnet50:variant=mnist:version=2"),
    ):
        with pytest.raises(error, match=r"variant|version"):
            load(wrong)
    assert trained_model("resnet50:variant=cifar10", None, Compute())[0].architecture.input == (3, 32, 32)


OPTIONS = (
    "alexnet:norm=batch:classes=10",
    "cifar10_quick:pixels=33",
    "cifar10_quick:norm=group",
    "googlenet:norm=batch:channels=1",
    "gpt2:layers=2:width=32:heads=4:context=8:classes=50",
    "inception3:norm=none",
    "inception3:norm=group:classes=10",
    "inception3:auxiliary=yes",
    "inception3:auxiliary=no",
    "lenet:pixels=31",
    "mobilenet2:pixels=33:norm=none",
    "resnet18:norm=none:pixels=65",
    "resnet50:version=1",
    "resnet50:version=1:norm=none",
    "resnet50:norm=none",
    "resnet50:norm=group:classes=10:pixels=33",
    "vgg16:norm=batch:pixels=67",
    *(f"{network}:variant={data}" for data in VARIANTS for network in ("resnet18", "resnet50", "vgg11", "mobilenet2")),
    "vgg16:variant=highres:norm=group:classes=7",
    "vgg16:variant=mnist:pixels=32:channels=3",
)


def test_the_simulator_knows_the_whole_zoo_and_its_options() -> None:
    assert sorted(BUILDERS) == sorted(zoo.NAMES)
    for name in zoo.NAMES:
        assert options_of(name) == zoo.options_of(name)


@pytest.mark.parametrize("name", [*BUILDERS, *OPTIONS])
def test_networks_are_the_simulators_layer_by_layer(name: str) -> None:
    described: list[tuple[str, int, int, int]] = []
    for layer in describe(name).layers:
        params = sum(variable.elements for variable in layer.trained)
        if layer.kind == "batch norm":  # it belongs to the convolution made before it
            at = max(i for i, before in enumerate(described) if before[0] == "conv")
            kind, before, outputs, flops = described[at]
            described[at] = (kind, before + params, outputs, flops)
        elif not layer.auxiliary:
            described.append((layer.kind, params, layer.outputs, layer.flops))
    # An embedding of places has no examples: inspection divides what it makes by them.
    found = [(x.kind, x.params, x.output * (2 if x.name == "places" else 1), x.flops) for x in load(name).layers]
    assert found == described
    matrices = [x.matrix for x in load(name).layers if x.kind == "fc"]
    assert [x.matrix for x in layers_of(describe(name)) if x.kind == "fc"] == matrices


def test_inceptions_auxiliary_head_is_the_simulators() -> None:
    layers = describe("inception3").layers
    head = [(x.kind, sum(v.elements for v in x.trained), x.outputs, x.flops) for x in layers if x.auxiliary]
    assert len(head) == 4
    found = [(x.kind, x.params, x.output, x.flops) for x in load("inception3:auxiliary=yes").layers]
    at = found.index(head[0])
    assert found[at : at + 4] == head
    assert found[at - 1][0] == "conv" and len(found) == len(load("inception3").layers) + 4


@pytest.mark.parametrize("name", [name for name in zoo.NAMES if name not in ("resnet101", "resnet152", "resnet200")])
def test_networks_say_what_they_take(name: str) -> None:
    with torch.device("meta"):
        model = zoo.build(name)
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    seen = load(name)
    assert (seen.input, seen.classes) == (model.input_shape, model.classes)
    assert seen.params == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_every_weight_learns(name: str) -> None:
    torch.manual_seed(1)
    plain, chosen = zoo.parse(SMALL[name])
    model = zoo.build(plain, **chosen, **({"norm": "group"} if "norm" in zoo.options_of(plain) else {}))
    assert list(model.buffers()) == [] or name == "inception3"  # nothing that ranks would have to agree on
    shape = model.input_shape
    inputs = torch.randint(5, (2, *shape)) if name == "gpt2" else torch.rand(2, *shape)
    outputs = model(inputs)
    scores = torch.cat([part.flatten() for part in (outputs if isinstance(outputs, tuple) else (outputs,))])
    scores.square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet50:version=1", "mobilenet2", "inception3"])
def test_group_normalisation_changes_no_size(name: str) -> None:
    groups, batches = load(f"{name}:norm=group"), load(name)
    assert [(x.params, x.output) for x in groups.layers] == [(x.params, x.output) for x in batches.layers]


def test_a_vgg_may_be_normalised() -> None:
    plain, normalised = load("vgg16"), load("vgg16:norm=batch")
    assert [x.output for x in plain.layers] == [x.output for x in normalised.layers]
    # A scale and a shift instead of the bias.
    assert normalised.params - plain.params == sum((64, 64, 128, 128, 256, 256, 256, *[512] * 6))


def test_gpt2_does_not_look_ahead() -> None:
    torch.manual_seed(1)
    model = zoo.build("gpt2", classes=50, context=8, layers=2, width=32, heads=4)
    tokens = torch.randint(50, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 50
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 5:], after[0, 5:])


def test_the_seed_decides_the_weights() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().view(-1) for p in zoo.build("lenet").parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_inception_hands_on_two_only_in_training() -> None:
    with torch.device("meta"):
        model = zoo.build("inception3", pixels=107, classes=5, auxiliary=True)
        images = torch.empty(2, 3, 107, 107)
    assert [part.shape for part in model(images)] == [(2, 5), (2, 5)]
    assert model.eval()(images).shape == (2, 5)


def test_the_layers_that_only_shift_have_nothing_else_to_learn() -> None:
    module = next(m for m in zoo.build("inception3", pixels=75).modules() if isinstance(m, nn.BatchNorm2d))
    assert [name for name, _ in module.named_parameters()] == ["bias"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vgg12", "unknown model 'vgg12'; legal are alexnet, cifar10_quick"),
        ("vgg19:classs=5", "unknown option of vgg19 'classs'; legal are channels, classes, norm, pixels"),
        ("vgg19:classes=many", "vgg19:classes takes a number, not 'many'"),
        ("vgg19:norm=layer", "unknown vgg19:norm 'layer'; legal are batch, group, none"),
        ("gpt2:pixels=3", "unknown option of gpt2 'pixels'; legal are classes, context, heads, layers, width"),
    ],
)
def test_what_cannot_be_said_is_answered_with_what_can(text: str, says: str) -> None:
    with pytest.raises(HostlibError) as raised:
        zoo.parse(text)
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vgg19:pixels=31", "VGG takes images of 32 pixels or more, not 31"),
        ("alexnet:pixels=28", "AlexNet takes images of 67 pixels or more, not 28"),
        ("inception3:pixels=74", "Inception-v3 takes images of 75 pixels or more, not 74"),
        (
            "inception3:pixels=106:auxiliary=yes",
            "Inception-v3 with its auxiliary head takes images of 107 pixels or more",
        ),
        ("lenet:classes=0", "classes, pixels and channels must be at least 1, not 0"),
        ("gpt2:heads=7", "layers, width and heads must be at least 1, and 7 heads must divide 768"),
        ("resnet18:version=2", "version of this ResNet must be 1, not 2"),
        ("resnet50:version=3", "version of this ResNet must be 1 or 2, not 3"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(HostlibError) as raised:
        load(text)
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_an_unknown_override_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown option of lenet 'depth'"):
        zoo.build("lenet", depth=3)
