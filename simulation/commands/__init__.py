"""Commands of `simulation`, a module each; simulation/cli.py registers them."""
