"""Collectives: execute mechanisms' schedules on a rank."""
