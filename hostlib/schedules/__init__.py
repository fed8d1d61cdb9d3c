"""Schedules: the operations, their checker and drawer."""
