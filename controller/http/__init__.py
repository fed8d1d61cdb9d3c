"""The HTTP API: ranks join, beat and leave; users see what the controller does."""
