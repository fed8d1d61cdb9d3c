"""Strategies at work: each rank's steps, with torch. hostlib/strategies/builtin/ says which there are."""
