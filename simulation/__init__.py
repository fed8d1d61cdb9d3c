"""Simulation: schedules played in virtual time."""
