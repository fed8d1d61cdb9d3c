"""`python -m controller`."""

from controller.cli import run

run()
