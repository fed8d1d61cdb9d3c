"""Commands of `hostlib`, a module each; hostlib/cli.py registers them."""
