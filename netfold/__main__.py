"""`python -m netfold`."""

from hostlib.system.programs import netfold

if __name__ == "__main__":  # the worker processes of a sweep import this module, too
    netfold()
