"""`python -m hostlib`."""

from hostlib.cli import run

run()
