"""Traces of published networks."""
