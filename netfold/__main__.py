"""`python -m netfold`."""

from hostlib.system.programs import netfold

if __name__ == "__main__":  # a sweep's processes import this, too
    netfold()
