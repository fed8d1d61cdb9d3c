"""Published tables, simulated again."""
