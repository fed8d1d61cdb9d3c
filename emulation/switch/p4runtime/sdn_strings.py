"""Values that are strings for controllers (@p4runtime_translation with sdn_string, section 18.1.2).

The switch chooses the mapping. A decimal number stands for itself, so that ports are called by their numbers. Any other
string gets an unused number at its first use, from the second highest downwards, and keeps it while the program runs.
(The highest number often has a special meaning, such as v1model's drop port.)
"""

from __future__ import annotations

import grpc
from p4.config.v1 import p4info_pb2

from emulation.switch.p4runtime.bytestrings import canonical, number
from emulation.switch.p4runtime.status import RequestError, invalid


class Names:
    """The strings of one translated type."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers: dict[str, int] = {}
        self._strings: dict[int, str] = {}

    def number(self, data: bytes, width: int, what: str) -> int:
        """The number of at most `width` bits for a string.

        Raises:
            RequestError: it is not a string, or no number is left for it.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise invalid(f"{what}: {self._name} is a string, in UTF-8") from error
        if not text:
            raise invalid(f"{what}: an empty string is no {self._name}")
        if text in self._numbers:
            return number(canonical(self._numbers[text]), width, what)
        plain = text.isascii() and text.isdigit() and text == str(int(text))
        value = number(canonical(int(text)), width, what) if plain else self._free(width, what)
        if value in self._strings:
            raise RequestError(
                grpc.StatusCode.ALREADY_EXISTS, f"{what}: {text} is the number of {self._strings[value]!r} already"
            )
        self._numbers[text], self._strings[value] = value, text
        return value

    def _free(self, width: int, what: str) -> int:
        value = (1 << width) - 2
        while value in self._strings:
            value -= 1
        if value < 0:
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{what}: all numbers of {width} bits have a string")
        return value

    def shown(self, value: int) -> bytes:
        """The string of a number: the one it was assigned to, else its digits."""
        return self._strings.get(value, str(value)).encode()


def translations(p4info: p4info_pb2.P4Info) -> dict[str, Names]:
    """Type name -> its strings, for each type of a program that is translated to strings."""
    return {
        name: Names(name)
        for name, new in p4info.type_info.new_types.items()
        if new.WhichOneof("representation") == "translated_type"
        and new.translated_type.WhichOneof("sdn_type") == "sdn_string"
    }
