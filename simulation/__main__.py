"""`python -m simulation`."""

from hostlib.system.programs import simulation

if __name__ == "__main__":  # a sweep's processes import this, too
    simulation()
