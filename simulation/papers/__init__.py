"""Simulations of published tables."""
