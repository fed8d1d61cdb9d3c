"""A package for each strategy: what is synchronised when, and where layers live.

Its torch-free __init__ has a SPEC (hostlib.strategies.strategy_spec.StrategySpec).
"""
