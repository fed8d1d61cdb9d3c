"""Errors of the emulation room.

EmulationError
├── ProgramError        the P4 program uses a construct that the embedded switch does not know, or is not BMv2 JSON
├── CompilerError       no C compiler, or it refused the generated code
├── PortError           a port's specification is wrong or its address is taken
├── ModelError          the model of a chip is absent, refuses something, or has ended
├── SwitchMemoryError   the system has no memory for what a program or a controller wants
├── CleanupError        (emulation/networks/cleanup.py)
├── DemoError           (emulation/demo/training_demo.py)
└── ReportError         a file of an experiment is missing or malformed (emulation/report/result_files.py)
"""

from __future__ import annotations


class EmulationError(Exception):
    """An error whose message is one line that says what is wrong and what is legal."""


class ProgramError(EmulationError):
    """A program that cannot run here; the message names the construct."""


class CompilerError(EmulationError):
    """Generated C code that could not be compiled."""


class PortError(EmulationError):
    """A switch port that could not be opened."""


class SwitchMemoryError(EmulationError):
    """Out of memory; nothing has changed."""


class ModelError(EmulationError):
    """The model of a chip is absent, refuses something, or has ended."""
