"""`python -m emulation`."""

from emulation.cli import run

run()
