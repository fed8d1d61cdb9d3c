"""Randomised runs with real processes and real signals: none may hang, end with wrong weights, or fail without saying
why. `python -m tests.chaos.run --runs 500 --seed 1`; docs/failures.md.
"""
