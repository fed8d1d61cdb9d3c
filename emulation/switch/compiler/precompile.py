"""Compile netfold's own programs when netfold is built: CMakeLists.txt runs this, with nothing but Python installed.

Usage: python -m emulation.switch.compiler.precompile C_COMPILER PROGRAM.json FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import precompile_program
from emulation.switch.compiler.program_writer import Generator

if __name__ == "__main__":
    compiler, program, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    for earlier in folder.glob(f"{program.stem}-*"):  # of other sources
        earlier.unlink()
    precompile_program(Generator(Program(program.read_bytes())).generate(), compiler, folder, program.stem)
