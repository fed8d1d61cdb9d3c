"""Networks to run experiments in: what there is (declaration), and the ways to make it real (realisation)."""
