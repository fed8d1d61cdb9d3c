"""`python -m netfold`."""

from netfold.cli import run

if __name__ == "__main__":  # a sweep's processes import this, too
    run()
