"""`python -m netfold`."""

from netfold.cli import run

if __name__ == "__main__":  # the worker processes of a sweep import this module, too
    run()
