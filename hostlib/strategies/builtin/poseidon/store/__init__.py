"""Poseidon's key-value store: parameters in pairs of at most 2 MB, on shards that apply the workers' updates.

Source: "Poseidon", section 4.1.
"""
