"""Schedules: their operations, and how to check and draw them."""
