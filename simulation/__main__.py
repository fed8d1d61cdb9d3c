"""`python -m simulation`."""

from simulation.cli import run

if __name__ == "__main__":  # a sweep's processes import this, too
    run()
