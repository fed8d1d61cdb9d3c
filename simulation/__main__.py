"""`python -m simulation`."""

from simulation.cli import run

run()
