"""Collectives at work: what executes a mechanism's schedules on a rank."""
