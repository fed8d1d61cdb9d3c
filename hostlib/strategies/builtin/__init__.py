"""What is synchronised when, and where layers live: a package for each strategy, with a SPEC
(hostlib.strategies.strategy_spec.StrategySpec) in its torch-free __init__."""
