"""Recommendations: the fastest plan that fits, how sure that is, and what would change it."""
