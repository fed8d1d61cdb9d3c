"""`python -m emulation`."""

from hostlib.system.programs import emulation

emulation()
