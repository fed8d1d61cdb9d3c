"""Strategies at work: each rank's steps, with torch. hostlib/strategies/ says which there are."""
