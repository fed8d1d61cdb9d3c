"""Benchmarks of switches."""
