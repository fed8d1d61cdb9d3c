"""Parameters of v1model's crc16_custom and crc32_custom, for which P4Runtime has no message.

Source: the arguments and defaults of BMv2's set_crc16_parameters and set_crc32_parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulation.errors import ProgramError

ALGORITHMS = {"crc16_custom": 16, "crc32_custom": 32}
FORM = "NAME=POLYNOMIAL,INITIAL,XOR,REFLECT_DATA,REFLECT_REMAINDER"
TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Crc:
    """A CRC as in catalogues.

    Attributes:
        polynomial: without its highest bit, the most significant one first.
        initial: of the remainder.
        final_xor: what the remainder is xored with at the end.
        reflect_data: the bits of each byte are processed least significant first.
        reflect_remainder: the remainder is reflected before the final xor.
    """

    width: int
    polynomial: int
    initial: int
    final_xor: int
    reflect_data: bool
    reflect_remainder: bool


DEFAULTS = {
    "crc16_custom": Crc(16, 0x8005, 0, 0, True, True),
    "crc32_custom": Crc(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, True, True),
}


@dataclass(frozen=True, slots=True)
class CrcSetting:
    """Parameters for one calculation of a program, or for all of an algorithm; numbers as in Crc."""

    name: str
    polynomial: int
    initial: int
    final_xor: int
    reflect_data: bool
    reflect_remainder: bool

    @classmethod
    def parse(cls, text: str) -> CrcSetting:
        """Parse FORM: numbers are decimal or with 0x, the last two values true or false.

        Raises:
            ProgramError: the text has another form.
        """
        name, _, values = text.partition("=")
        fields = [value.strip().lower() for value in values.split(",")]
        try:
            polynomial, initial, final_xor = (int(value, 0) for value in fields[:3])
            reflect_data, reflect_remainder = (TRUTHS[value] for value in fields[3:])
        except (ValueError, KeyError) as error:
            raise ProgramError(f"{text!r}: a CRC is {FORM}, as crc16_custom=0x1021,0xffff,0,false,false") from error
        if not name or min(polynomial, initial, final_xor) < 0:
            raise ProgramError(f"{text!r}: a CRC is {FORM}, with numbers of 0 or more")
        return cls(name, polynomial, initial, final_xor, reflect_data, reflect_remainder)

    def of(self, width: int) -> Crc:
        """These parameters for a CRC of a width in bits.

        Raises:
            ProgramError: one of them is wider.
        """
        for what in ("polynomial", "initial", "final_xor"):
            if getattr(self, what) >> width:
                raise ProgramError(f"{self.name}: its {what} {getattr(self, what):#x} has more than {width} bits")
        return Crc(width, self.polynomial, self.initial, self.final_xor, self.reflect_data, self.reflect_remainder)


def chosen(calculation: str, algorithm: str, settings: tuple[CrcSetting, ...]) -> Crc:
    """The CRC of a calculation with a custom algorithm.

    Its own setting precedes its algorithm's, which precedes the default; of several the last one counts.

    Raises:
        ProgramError: the setting does not fit the algorithm.
    """
    for name in (calculation, algorithm):
        for setting in reversed(settings):
            if setting.name == name:
                return setting.of(ALGORITHMS[algorithm])
    return DEFAULTS[algorithm]


def check_names(settings: tuple[CrcSetting, ...], calculations: dict[str, str]) -> None:
    """Check settings' names against the algorithms and the program's calculations (name: algorithm).

    Raises:
        ProgramError: a name is neither an algorithm nor a calculation with a custom algorithm.
    """
    custom = [name for name, algorithm in calculations.items() if algorithm in ALGORITHMS]
    for setting in settings:
        if setting.name not in (*ALGORITHMS, *custom):
            has = ", ".join(custom) or "none"
            raise ProgramError(
                f"{setting.name} is no custom CRC: give {' or '.join(ALGORITHMS)}, or one of the program's ({has})"
            )
