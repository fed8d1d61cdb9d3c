"""The kinds of values that options take: each with its metavar, its unit, its spellings and an example.

docs/commands.md has them as a table (tests/commands_page.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hostlib.errors import HostlibError
from hostlib.text import units

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # generic in new versions of click alone
    _ParamType = click.ParamType


@dataclass(frozen=True, slots=True)
class Words:
    """What the reference says of a kind of value.

    Attributes:
        metavar: how usage lines call it.
        meaning: what it is, with its unit.
        spellings: what is accepted.
        examples: of values.
    """

    metavar: str
    meaning: str
    spellings: str
    examples: tuple[str, ...] = ()


def metavar(words: Words, param: click.Parameter) -> str | None:
    """An option's; arguments go by their names, as click has it."""
    return words.metavar if isinstance(param, click.Option) else None


class Value(_ParamType):
    """A value of a text, which `parse` makes.

    Args:
        words: what the reference says of it.
        parse: the value, from a text; raises HostlibError or ValueError with what is wrong.
        as_typed: give commands the text itself, once it is known to be right.
    """

    def __init__(self, words: Words, parse: Callable[[str], Any] = str, as_typed: bool = False) -> None:
        self.words, self.name = words, words.metavar
        self._parse, self._as_typed = parse, as_typed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            parsed = self._parse(value)
        except (HostlibError, ValueError) as error:
            self.fail(str(error).removeprefix(f"{units.VALUE} "), param, ctx)
        return value if self._as_typed else parsed

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return metavar(self.words, param)

    def typed(self) -> Value:
        """The same, which gives commands the text as it was typed."""
        return Value(self.words, self._parse, as_typed=True)

    def listed(self) -> Value:
        """Several, separated by commas; commands get the text as it was typed."""

        def parse(text: str) -> list[Any]:
            return [self._parse(each.strip()) for each in text.split(",") if each.strip()]

        words = Words(f"{self.words.metavar},...", self.words.meaning, self.words.spellings, self.words.examples)
        return Value(words, parse, as_typed=True)


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a text with commas, as commands get it of `listed()`: each once, in its order."""
    return tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))


class Whole(click.IntRange):
    """A whole number, within limits or not."""

    name = "integer"

    def __init__(self, min: int | None = None, max: int | None = None, words: Words | None = None) -> None:
        super().__init__(min, max)
        self.words = words or Words("N", "a whole number", "digits", ("4",))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # Python's int() also takes 1_000 and the digits of other scripts, and refuses more than 4300 digits by itself.
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,20}", value):
            self.fail(f"{value!r} is not a valid integer.", param, ctx)
        return super().convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return metavar(self.words, param)

    def _describe_range(self) -> str:
        if self.min is None:
            return ""
        return f"{self.min} or more" if self.max is None else f"{self.min} to {self.max}"


class Finite(click.FloatRange):
    """A number that is one: click's ranges let nan pass, and inf where there is no upper end."""

    name = "number"

    def __init__(self, words: Words) -> None:
        super().__init__()
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return metavar(self.words, param)

    def _describe_range(self) -> str:
        return ""  # none has limits


class Location(click.Path):
    """A path."""

    def __init__(self, words: Words, **options: Any) -> None:
        super().__init__(path_type=Path, **options)
        self.words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return metavar(self.words, param)


# ---- numbers --------------------------------------------------------------------------------------------------------

N = Whole()
COUNTED = Value(N.words, str).listed()  # several N, which commands read


def _up_to(power: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isdecimal() and text.isascii() and int(text) < 2**power):
            raise ValueError(f"{text!r} is not a whole number from 0 to 2^{power}-1")
        return int(text)

    return parse


DEVICE_ID = Value(Words("ID", "a P4Runtime device ID", "0 to 2^64-1", ("1",)), _up_to(64))
SEED = Value(
    Words("SEED", "where random numbers begin: the same seed, the same run", "0 to 2^63-1", ("1",)), _up_to(63)
)
NUMBER = Finite(Words("NUMBER", "a number without a unit", "digits, with or without a decimal point", ("0.05",)))
FACTOR = Finite(Words("FACTOR", "how many times as much", "digits, with or without a decimal point", ("1", "2.5")))


def probability(text: str) -> float:
    """A probability, from a text. Raises ValueError: it is none in [0, 1)."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.0 <= found < 1.0:
        raise ValueError(f"{text!r} is not a probability in [0, 1)")
    return found


PROBABILITY = Value(
    Words("PROBABILITY", "a probability, from 0 to below 1", "digits, with or without a decimal point", ("0.01",)),
    probability,
)

# ---- quantities with units ------------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    """Seconds, from `5s`, `200ms` or `5`. Raises QuantityError."""
    return units.time_ns(text, units.VALUE, bare="s") / 1e9


def some_seconds(text: str) -> float:
    """As `seconds`, but above 0. Raises ValueError as well."""
    found = seconds(text)
    if found <= 0:
        raise ValueError(f"{text!r} is not above 0")
    return found


_TIME = Words("TIME", "a duration", "ns, us, ms, s; a bare number is seconds", ("5us", "200ms", "30s", "30"))
TIME = Value(_TIME, seconds)
TIME_ABOVE_0 = Value(_TIME, some_seconds)
SIZE = Value(
    Words(
        "SIZE",
        "an amount of data",
        "B; K, KiB, M, MiB, G, GiB (powers of 1024); kB, MB, GB (powers of 1000); a bare number is bytes",
        ("64K", "16MiB", "25MB", "65536"),
    ),
    partial(units.size, what=units.VALUE),
)
RATE = Value(
    Words(
        "RATE",
        "what a link carries in each direction",
        "bit, kbit, mbit, gbit, tbit, also as Gbit/s, Gbps, Gb/s or G; powers of 1000",
        ("25gbit", "25Gbit/s", "25gbps", "100G", "100mbit"),
    ),
    partial(units.bandwidth, what=units.VALUE),
)
FRAMES = Value(
    Words(
        "FROM:TO", "two lengths of a queue, in frames", "two whole numbers with a colon, the smaller first", ("30:90",)
    ),
    partial(units.frame_range, what=units.VALUE),
)
THROUGHPUT = Value(
    Words(
        "THROUGHPUT",
        "bytes that a memory or host moves per second",
        "B/s, kB/s, MB/s, GB/s, TB/s; powers of 1000",
        ("10GB/s",),
    ),
    partial(units.throughput, what=units.VALUE),
)

# ---- names ----------------------------------------------------------------------------------------------------------


def shape(text: str) -> tuple[int, ...]:
    """(3, 224, 224), from `3x224x224`; (224,), from `224`, which is short for 3x224x224 where a model takes images.

    Raises:
        ValueError: it is no such text.
    """
    extents = text.split("x")
    if not all(extent.isdecimal() and extent.isascii() and int(extent) > 0 for extent in extents):
        raise ValueError(f"{text!r} is not a shape such as 3x224x224, 224 for short, or 1024 for so many tokens")
    return tuple(map(int, extents))


def device(text: str) -> str:
    """cpu, cuda or cuda:N. Raises ValueError."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", text):
        raise ValueError(f"{text!r} is not cpu, cuda, or cuda:N")
    return text


SHAPE = Value(
    Words(
        "CxHxW",
        "the shape of one example: channels, height, width",
        "CxHxW; N for 3xNxN where a model takes images, and for N tokens where it takes text",
        ("3x224x224", "224"),
    ),
    shape,
)
DEVICE = Value(Words("DEVICE", "where tensors are", "cpu, cuda, cuda:N", ("cpu", "cuda:1")), device)
RANK_FACTOR = Value(
    Words("RANK=FACTOR", "a rank, and how many times as much", "a rank from 0, =, a number", ("3=1.5",))
)
MECHANISM = Value(
    Words(
        "MECHANISM",
        "a mechanism, or a strategy and one",
        "NAME[:OPTION=VALUE...], STRATEGY/NAME; see `netfold mechanisms`",
        ("ring", "ps:servers=4", "hybcomm/ring"),
    )
)
COLLECTIVE = Value(
    Words(
        "COLLECTIVE",
        "what ranks do together with a tensor",
        "all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all; to measure, also rs+ag",
        ("all_reduce", "reduce_scatter"),
    )
)
MODEL = Value(
    Words(
        "MODEL",
        "a network",
        "NAME[:OPTION=VALUE...] or MODULE:FACTORY; see `netfold models`; to simulate, also a trace's file",
        ("vgg16", "resnet50:norm=group", "my.models:network"),
    )
)
HOST_LINK = Value(
    Words(
        "LINK", "what GPUs of a host have between them", "a name that the help lists, or a RATE", ("nvlink4", "400gbit")
    )
)
GPU = Value(Words("GPU", "a GPU", "one of the names that the help lists", ("h100", "a100")))
DATASET = Value(
    Words(
        "DATASET",
        "what is learnt",
        "digits, mnist:FOLDER, cifar10:FOLDER, images:FOLDER[:examples=N], synthetic[:examples=N]",
        ("digits", "cifar10:/data/cifar"),
    )
)
DTYPE = Value(Words("DTYPE", "the type of a tensor's elements", "float32, int32, float16, bfloat16", ("float32",)))
NAME = Value(Words("NAME", "one of the names that the help lists", "as listed", ("simulator",)))
TEXT = Value(Words("TEXT", "a part of a name", "any text", ("vgg16",)))
REGEX = Value(Words("REGEX", "a pattern of names", "a regular expression of Python", ("Mixed_6e/",)))
COMMAND = Value(Words("COMMAND", "a command with its options", "words, as in a shell", ("ssh -o BatchMode=yes",)))

# ---- places ---------------------------------------------------------------------------------------------------------

ADDRESS = Value(Words("ADDRESS", "an IPv4 address", "four numbers with dots", ("10.0.0.1",)))
ADDRESS_PORT = Value(
    Words(
        "ADDRESS:PORT",
        "where a server listens",
        "an IPv4 address or host name, a colon, a port",
        ("127.0.0.1:9339",),
    )
)
URL = Value(Words("URL", "the address of a controller's HTTP API", "http://ADDRESS:PORT", ("http://127.0.0.1:9339",)))
URLS = URL.listed()  # of a primary and its standbys
PORT = Value(
    Words(
        "N=WHERE[,NAME=VALUE...]",
        "a port of the switch",
        "see `netfold switch --help`",
        ("1=eth0", "2=udp:127.0.0.1:9001,delay=2ms"),
    )
)


def _switch(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal() and port.isascii() and 0 < int(port) < 2**16):
        raise ValueError(f"{text!r} is not NAME=ADDRESS:PORT")
    return name, address


def _ports(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", part.strip(), re.ASCII)
        first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not first <= last <= MOST_PORT:
            raise ValueError(f"{part.strip()!r} is not a port of 0 to {MOST_PORT}, nor a range of them")
        found += range(first, last + 1)
    return sorted(set(found))


MOST_PORT = 0x1FF  # a switch's ports have 9 bits
SWITCH = Value(
    Words(
        "NAME=ADDRESS:PORT", "a running switch", "a name, and the switch's P4Runtime address", ("leaf0=10.0.0.2:9559",)
    ),
    _switch,
)
PORTS = Value(Words("PORT,...", "ports of a switch", "numbers, and ranges of them, with commas", ("1-16,64",)), _ports)
CRC = Value(
    Words(
        "NAME=CRC",
        "a CRC's parameters",
        "POLYNOMIAL,INITIAL,XOR,REFLECT_DATA,REFLECT_REMAINDER",
        ("crc16_custom=0x1021,0xffff,0,false,false",),
    )
)
_FILE = Words("FILE", "a file", "a path", ("result.json",))
_FOLDER = Words("FOLDER", "a folder", "a path", ("build/demo",))
ANY_FILE = Location(_FILE)  # whatever reads it says what is wrong with it
FILE = Location(_FILE, dir_okay=False)
FILE_OR_DASH = Location(_FILE, allow_dash=True)
EXISTING_FILE = Location(_FILE, exists=True, dir_okay=False)
FOLDER = Location(_FOLDER, file_okay=False)
ANY_FOLDER = Location(_FOLDER)


def words_of(kind: click.ParamType[Any]) -> Words | None:
    """What the reference says of a kind; None of a choice and of a flag."""
    found = getattr(kind, "words", None)
    return found if isinstance(found, Words) else None
