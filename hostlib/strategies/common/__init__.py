"""Trainers' common parts, with torch: each rank's training steps. The strategies are in hostlib/strategies/builtin/."""
