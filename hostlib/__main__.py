"""`python -m hostlib`."""

from hostlib.system.programs import hostlib

hostlib()
