"""`python -m controller`."""

from hostlib.system.programs import controller

controller()
