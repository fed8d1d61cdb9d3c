"""Simulation: schedules executed in virtual time."""
